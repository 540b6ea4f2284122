"""What `icestream token` keeps: one file a token, with all that renews it, and one a client registration."""

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
    """A client's registration at an issuer. The secret is empty for a public client."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    issuer: str
    client_id: str
    client_secret: str = Field("", repr=False)


class StoredToken(BaseModel):
    """An access token and how to renew it. Its repr holds no secret."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    access_token: str = Field(repr=False)
    refresh_token: str = Field("", repr=False)
    scope: str
    """As granted, separated by spaces."""
    federation: str
    """The one that the token was asked for; it is sent to no other."""
    expires_s: float | None = None
    """Since 1970, as the issuer said when it granted it; a JWT tells itself."""
    token_endpoint: str
    client: Client

    @property
    def claims(self) -> TokenClaims:
        """The token's own, and for an opaque one what the issuer said when it granted it."""
        claims = read_claims(self.access_token)
        if claims.scopes is not None:
            return claims
        return TokenClaims(issuer=self.client.issuer, scopes=parse_scopes(self.scope), expires_s=self.expires_s)


def token_folder(environment: Mapping[str, str]) -> Path:
    """$XDG_CACHE_HOME/icestream/tokens, or ~/.cache/icestream/tokens."""
    base = environment.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".cache"
    return root / "icestream" / "tokens"


def token_path(folder: Path, token: StoredToken) -> Path:
    """One file for each federation, issuer and scope: a new token for the same replaces the old one."""
    return folder / f"token-{_name(token.federation, token.client.issuer, token.scope)}.json"


def client_path(folder: Path, issuer: str) -> Path:
    """One registration for each issuer."""
    return folder / f"client-{_name(issuer)}.json"


def stored_paths(folder: Path) -> list[Path]:
    """Every stored token, sorted by name."""
    return sorted(folder.glob("token-*.json"))


def load_token(path: Path) -> StoredToken:
    """Raises FileNotFoundError and BadTokenError."""
    return _load(path, StoredToken)


def load_client(path: Path) -> Client | None:
    """The registration; None: there is none."""
    try:
        return _load(path, Client)
    except FileNotFoundError:
        return None


def save(path: Path, content: BaseModel) -> None:
    """Atomic, mode 0600."""
    write_private(path, content.model_dump_json(indent=1) + "\n")


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """True for the one process that may renew this file now; a refresh token works only once where it is rotated."""
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
