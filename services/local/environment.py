"""Environment of each child process: all that is no secret, and of the secrets those that this child needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from services.config import ENVIRONMENT_PREFIX
from services.local.trainer_group import RANK_VARIABLES

if TYPE_CHECKING:
    from services.config import Config

_TOKENS = ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "_CONDOR_CREDS")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_STORES = ("AWS_*", "S3_*", "AZURE_*", "GOOGLE_*", "GCS_*", "FSSPEC_*", "HF_*", "GITHUB_*", "X509_*", "SSH_AUTH_SOCK")
"""What fsspec's backends read."""
_WANDB = ("WANDB_*",)

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|CREDS|APIKEY|COOKIE|BEARER|HEADERS"
    r"|(^|_)(KEYS?|AUTH|AUTHORIZATION|PASS|PAT|DSN|PRIVATE)(_|$)"
    r"|^(AWS|S3|AZURE|GOOGLE|GCS|FSSPEC|HF|GITHUB|X509|WANDB|OTEL)_",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@|\b(Bearer|Basic) \S|^eyJ[\w-]+\.|-----BEGIN")
"""A URL with a user's name, a header, a JSON web token, a key."""


def secrets_allowed(config: Config) -> dict[str, tuple[str, ...]]:
    """By service, names (`*` at the end: all that begin so) of the secrets that it gets where they are set.

    A decoder reads files on this machine only: it gets none.
    """
    return {
        "fetcher": (*_TOKENS, *_PROXIES, *_STORES),
        "decoder": (),
        "trainer": (*_WANDB, *_PROXIES) if config.trainer.wandb.mode != "off" else (),
        "outputs": (*_TOKENS, *_PROXIES) if "://" in config.outputs.destination else (),
    }


def child_environment(environment: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """What a child gets of ``environment``: no secret but those ``allowed``, nor what is for `icestream run` alone.

    What configures a run is in the stored configuration already, below the flags.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(ENVIRONMENT_PREFIX)
        and name not in RANK_VARIABLES
        and (not _is_secret(name, value) or any(_matches(name, rule) for rule in allowed))
    }


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def _matches(name: str, rule: str) -> bool:
    return name.startswith(rule[:-1]) if rule.endswith("*") else name == rule
