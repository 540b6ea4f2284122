"""Storage of `icestream token`: one file per token, with the data for its renewal, and one per client registration."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.file_lock import try_lock
from common.pelican.tokens.claims import TokenClaims, read_claims
from common.pelican.tokens.errors import BadTokenError
from common.pelican.tokens.files import make_private_folder, read_private, write_private
from common.pelican.tokens.scopes import parse_scopes

_Content = TypeVar("_Content", bound=BaseModel)


class Client(BaseModel):
    """Registration of a client at an issuer. The secret is empty for a public client."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    issuer: str
    client_id: str
    client_secret: str = Field("", repr=False)


class StoredToken(BaseModel):
    """Access token with the data for its renewal. The repr contains no secret."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    access_token: str = Field(repr=False)
    refresh_token: str = Field("", repr=False)
    scope: str
    """Granted scopes, separated by spaces."""
    federation: str
    """Federation that the token was requested for; it is sent to no other."""
    expires_s: float | None = None
    """Expiry in seconds since 1970, from the issuer's answer; a JWT contains its own."""
    token_endpoint: str
    client: Client

    @property
    def claims(self) -> TokenClaims:
        """Claims of the token; for an opaque one those of the issuer's answer."""
        claims = read_claims(self.access_token)
        if claims.scopes is not None:
            return claims
        return TokenClaims(issuer=self.client.issuer, scopes=parse_scopes(self.scope), expires_s=self.expires_s)


def token_folder(environment: Mapping[str, str]) -> Path:
    """Folder of stored tokens: $XDG_CACHE_HOME/icestream/tokens, or ~/.cache/icestream/tokens."""
    base = environment.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".cache"
    return root / "icestream" / "tokens"


def token_path(folder: Path, token: StoredToken) -> Path:
    """Path of a token's file: one for each federation, issuer and scope, where a new token replaces the old one."""
    return folder / f"token-{_name(token.federation, token.client.issuer, token.scope)}.json"


def client_path(folder: Path, issuer: str) -> Path:
    """Path of the registration at an issuer: one for each."""
    return folder / f"client-{_name(issuer)}.json"


def stored_paths(folder: Path) -> list[Path]:
    """Paths of all stored tokens, sorted by name."""
    return sorted(folder.glob("token-*.json"))


def load_token(path: Path) -> StoredToken:
    """Stored token. Raises FileNotFoundError and BadTokenError."""
    return _load(path, StoredToken)


def load_client(path: Path) -> Client | None:
    """Stored registration; None: there is none."""
    try:
        return _load(path, Client)
    except FileNotFoundError:
        return None


def save(path: Path, content: BaseModel) -> None:
    """Write a file atomically, mode 0600."""
    write_private(path, content.model_dump_json(indent=1) + "\n")


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock on the renewal of a file: True for the one process that holds it. Refresh tokens may work only once."""
    make_private_folder(path.parent)
    descriptor = try_lock(path.with_suffix(".lock"))
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _load(path: Path, kind: type[_Content]) -> _Content:
    try:
        return kind.model_validate_json(read_private(path))
    except ValidationError:  # its text would quote the file
        raise BadTokenError(f"{path}: not what `icestream token` wrote; delete it and run `icestream token`") from None


def _name(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
