"""Secret environment variables, by name or by value: withheld from processes that don't need them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|CREDS|APIKEY|COOKIE|BEARER|HEADERS|WEBHOOK"
    r"|(^|_)(KEYS?|AUTH|AUTHORIZATION|PAT|DSN|PRIVATE)(_|$)"
    r"|(PASS|BINDPW|(?<!^)(?<!^OLD)PWD)(_|$)"
    r"|^(AWS|S3|AZURE|GOOGLE|GCS|FSSPEC|HF|GITHUB|X509|WANDB|OTEL)_",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@|\b(Bearer|Basic) \S|^eyJ[\w-]+\.|-----BEGIN")
"""Pattern of secret values: a URL with a user's name, a header, a JSON web token, a key."""


def without_secret_variables(environment: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Variables without the secrets; those ``allowed`` stay (names; `*` at the end: a prefix)."""
    return {
        name: value
        for name, value in environment.items()
        if not _is_secret(name, value) or any(_matches(name, rule) for rule in allowed)
    }


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def _matches(name: str, rule: str) -> bool:
    return name.startswith(rule[:-1]) if rule.endswith("*") else name == rule
