"""Settings of the tokens: where one is found, and how its scope is told from the inputs."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator

from common.config import ConfigBranch


class TokenConfig(ConfigBranch):
    """Read by common/pelican/tokens. Only names of files stand here, never a token (docs/tokens.md)."""

    file: Path | None = None
    """File that holds the token: plain text, or JSON with `access_token`. Empty: BEARER_TOKEN, BEARER_TOKEN_FILE,
    $XDG_RUNTIME_DIR/bt_u$UID, /tmp/bt_u$UID, _CONDOR_CREDS, and what `icestream token` stored, in this order."""
    federation: str = ""
    """Federation that the found tokens are for, by its host: none of them is sent to another. Empty: a token goes to
    namespaces that take those of its issuer; one that doesn't tell its issuer goes nowhere."""
    storage_prefix: str = "/icecube/wipac"
    """Start of a pelican:// path that the issuer's scopes leave out. A path that isn't below it is taken as a whole."""
    issuer: str = ""
    """Issuer that `icestream token` asks: an https:// URL. Empty: the one that the federation names."""
    client_id: str = ""
    """Client id at the issuer. Empty: `icestream token` registers itself, once for each issuer."""
    margin_s: float = Field(60.0, ge=0)
    """A token is renewed this long before its end, or at nine tenths of its life if that is later."""

    @field_validator("file")
    @classmethod
    def _is_a_name(cls, value: Path | None) -> Path | None:
        if value is not None and re.search(r"(^|/)eyJ[\w-]*\.", str(value)):
            raise ValueError("the name of a file that holds the token, not the token itself: anybody may read it here")
        return value

    @field_validator("storage_prefix")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        parts = value.split("/")
        if value and (parts[0] or ".." in parts or "." in parts or re.search(r"[\s*?\[\]{}]", value)):
            raise ValueError("an absolute path without wildcards, for example /icecube/wipac, or nothing")
        return "/" + "/".join(part for part in parts if part) if value.strip("/") else ""
