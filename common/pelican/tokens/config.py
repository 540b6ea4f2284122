"""Settings of the tokens: their location, and the scopes needed for the inputs."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator

from common.config import ConfigBranch


class TokenConfig(ConfigBranch):
    """Settings read by common/pelican/tokens: names of files, never a token (docs/how-to/tokens.md)."""

    file: Path | None = None
    """File that holds the token: plain text, or JSON with `access_token`. Empty: BEARER_TOKEN, BEARER_TOKEN_FILE,
    $XDG_RUNTIME_DIR/bt_u$UID, /tmp/bt_u$UID, _CONDOR_CREDS, the one stored by `icestream token`, in this order."""
    federation: str = ""
    """Federation of the found tokens, by its host: none of them is sent to another one. Empty: a token is sent to
    namespaces that accept its issuer; one without issuer is never sent."""
    storage_prefix: str = "/icecube/wipac"
    """Prefix of a pelican:// path that the issuer's scopes omit. A path that isn't below it is used as a whole."""
    issuer: str = ""
    """Issuer for `icestream token`: an https:// URL. Empty: the one named by the federation."""
    client_id: str = ""
    """Client id at the issuer. Empty: `icestream token` registers itself, once for each issuer."""
    margin_s: float = Field(60.0, ge=0)
    """Time before its end at which a token is renewed; nine tenths of its lifetime if that is later."""

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
