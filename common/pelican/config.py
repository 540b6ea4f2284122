"""Settings of the Pelican client and of the tokens that it sends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from common.config import ConfigBranch


class PelicanConfig(ConfigBranch):
    """Settings read by common/pelican. None of them changes the training data."""

    checksums: Literal["inventory", "origin"] = "inventory"
    """Checksums that transfers are checked with, besides their size. `inventory`: those in a list file. `origin`: where
    there is none, that of the origin, with one more request for each file (docs/explanation/security.md)."""


class TokenConfig(ConfigBranch):
    """Settings read by common/pelican: names of files, never a token (docs/how-to/tokens.md)."""

    file: Path | None = None
    """File that holds the token: plain text, or JSON with `access_token`. Empty: BEARER_TOKEN, BEARER_TOKEN_FILE,
    $XDG_RUNTIME_DIR/bt_u$UID, /tmp/bt_u$UID, _CONDOR_CREDS, in this order."""
    federation: str = ""
    """Federation of the found tokens, by its host: none of them is sent to another one. Empty: a token is sent to
    namespaces that accept its issuer; one without issuer is never sent."""
    storage_prefix: str = "/icecube/wipac"
    """Prefix of a pelican:// path that the issuer's scopes omit (docs/how-to/tokens.md). A path that isn't below it is
    used as a whole."""

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
