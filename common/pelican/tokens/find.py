"""Search for tokens in their usual places, and choice of one.

WLCG Bearer Token Discovery 1.0 (BEARER_TOKEN, BEARER_TOKEN_FILE, bt_u$UID), HTCondor's _CONDOR_CREDS, own store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.pelican.tokens.claims import TokenClaims, read_claims, what_is_wrong
from common.pelican.tokens.config import TokenConfig
from common.pelican.tokens.errors import BadTokenError
from common.pelican.tokens.files import Signature, read_token, signature
from common.pelican.tokens.scopes import Need, missing
from common.pelican.tokens.store import StoredToken, load_token, stored_paths, token_folder
from common.user_path import user_path

VARIABLE = "BEARER_TOKEN"
VARIABLE_NAME = f"{VARIABLE} (environment)"
"""Displayed name: text after `BEARER_TOKEN:` or `BEARER_TOKEN=` would be redacted as a token."""
FILE_VARIABLE = "BEARER_TOKEN_FILE"
CONDOR_VARIABLE = "_CONDOR_CREDS"
OWN_COMMAND = "`icestream token`"
SHARED_FOLDER = Path("/tmp")
"""Folder of tokens without XDG_RUNTIME_DIR, by the WLCG profile."""


@dataclass(frozen=True)
class TokenPlace:
    """Possible place of a token: a file, or (without path) the environment variable BEARER_TOKEN."""

    name: str
    """Displayed name: a variable, a file, or both."""
    path: Path | None = None
    required: bool = False
    """True if named by the user: a missing token is an error."""
    shared_folder: bool = False
    stored: bool = False
    """True for a file of `icestream token`, which may be renewable."""


@dataclass(frozen=True)
class Found:
    """Token and its place. The repr doesn't contain the token."""

    place: TokenPlace
    token: str = field(repr=False)
    claims: TokenClaims
    stored: StoredToken | None = field(default=None, repr=False)

    def describe(self, now_s: float) -> str:
        """Place, scopes, audience and time left; never the token."""
        return f"{self.place.name}: {self.claims.describe(now_s)}"


def places(config: TokenConfig, environment: Mapping[str, str]) -> list[TokenPlace]:
    """Places in the order of the search. A file named in the configuration is the only one."""
    if config.file is not None:
        return [TokenPlace(str(config.file), user_path(config.file), required=True)]
    found = []
    if environment.get(VARIABLE, "").strip():
        found.append(TokenPlace(VARIABLE_NAME))
    if environment.get(FILE_VARIABLE):
        path = Path(environment[FILE_VARIABLE])
        found.append(TokenPlace(f"{FILE_VARIABLE} ({path})", path, required=True))
    name = f"bt_u{os.geteuid()}"
    if environment.get("XDG_RUNTIME_DIR"):
        path = Path(environment["XDG_RUNTIME_DIR"], name)
        found.append(TokenPlace(str(path), path))
    path = SHARED_FOLDER / name
    found.append(TokenPlace(str(path), path, shared_folder=True))
    if environment.get(CONDOR_VARIABLE):
        found += [
            TokenPlace(f"{CONDOR_VARIABLE} ({path})", path)
            for path in _condor_files(Path(environment[CONDOR_VARIABLE]))
        ]
    found += [
        TokenPlace(f"{OWN_COMMAND} ({path})", path, stored=True) for path in stored_paths(token_folder(environment))
    ]
    return found


def look(place: TokenPlace, environment: Mapping[str, str], federation: str) -> Found | None:
    """Token in one place; None: nothing, or a stored token of another federation. Raises BadTokenError."""
    if place.path is None:
        token = environment.get(VARIABLE, "").strip()
        wrong = what_is_wrong(token)
        if wrong:
            raise BadTokenError(f"{VARIABLE_NAME}: this is no token: {wrong}; set it to a token, or unset it")
        return Found(place, token, read_claims(token))
    try:
        if place.stored:
            stored = load_token(place.path)
            if stored.federation != federation:
                return None
            return Found(place, stored.access_token, stored.claims, stored)
        token = read_token(place.path, shared_folder=place.shared_folder)
    except FileNotFoundError:
        if place.required:
            raise BadTokenError(f"{place.name}: no such file; expected one that holds the token") from None
        return None
    return Found(place, token, read_claims(token))


def signatures(config: TokenConfig, environment: Mapping[str, str]) -> tuple[tuple[str, Signature], ...]:
    """Signatures of all places, which change with any place or its content."""
    return tuple((place.name, signature(place.path) if place.path else None) for place in places(config, environment))


def choose(candidates: Iterable[Found], need: Need, now_s: float, may_renew: Callable[[Found], bool]) -> Found | None:
    """Best token: a valid one that covers the need, a renewable one that covers it, any valid one, any.

    Among equals the first place wins. A token that doesn't cover the need may still work: the issuer defines the
    names of paths in scopes, and `token.storage_prefix` may be wrong.
    """

    def rank(found: Found) -> int:
        valid = found.claims.is_valid(now_s)
        covers = found.claims.scopes is None or not missing(found.claims.scopes, need.scopes)
        if covers and (valid or may_renew(found)):
            return 0 if valid else 1
        return 2 if valid else 3

    return min(candidates, key=rank, default=None)


def _condor_files(folder: Path) -> list[Path]:
    """Token files of an HTCondor job: a folder with one ``SERVICE.use`` each; ``scitokens`` is the usual service."""
    usual = folder / "scitokens.use"
    if usual.exists():
        return [usual]
    return sorted(folder.glob("*.use"))[:1]
