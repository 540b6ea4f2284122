"""Where tokens are looked for, and which one is taken.

WLCG Bearer Token Discovery 1.0 (BEARER_TOKEN, BEARER_TOKEN_FILE, bt_u$UID), HTCondor's _CONDOR_CREDS, our own store.
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
"""As shown: what stands after `BEARER_TOKEN:` or `BEARER_TOKEN=` would be taken for a token, and left out."""
FILE_VARIABLE = "BEARER_TOKEN_FILE"
CONDOR_VARIABLE = "_CONDOR_CREDS"
OWN_COMMAND = "`icestream token`"
SHARED_FOLDER = Path("/tmp")
"""Where the WLCG profile has tokens of those who have no XDG_RUNTIME_DIR."""


@dataclass(frozen=True)
class TokenPlace:
    """One place to look at: a file, or (without) the environment variable BEARER_TOKEN."""

    name: str
    """As shown: a variable, a file, or both."""
    path: Path | None = None
    required: bool = False
    """The user named it: that nothing is there is an error."""
    shared_folder: bool = False
    stored: bool = False
    """A file of `icestream token`, which may renew itself."""


@dataclass(frozen=True)
class Found:
    """A token and where it stood. Its repr doesn't hold the token."""

    place: TokenPlace
    token: str = field(repr=False)
    claims: TokenClaims
    stored: StoredToken | None = field(default=None, repr=False)

    def describe(self, now_s: float) -> str:
        """Place, scopes, audience and time left; never the token."""
        return f"{self.place.name}: {self.claims.describe(now_s)}"


def places(config: TokenConfig, environment: Mapping[str, str]) -> list[TokenPlace]:
    """All places, in the order in which they are looked at. A file that the configuration names is the only one."""
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
    """What stands in one place; None: nothing, or a stored token of another federation. Raises BadTokenError."""
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
    """Changes whenever a place comes, goes, or holds something else."""
    return tuple((place.name, signature(place.path) if place.path else None) for place in places(config, environment))


def choose(candidates: Iterable[Found], need: Need, now_s: float, may_renew: Callable[[Found], bool]) -> Found | None:
    """The best token: a valid one that covers the need, one that can be renewed and does, any valid one, any.

    Among equals the first place wins. One that doesn't cover the need may still work: what a path is called in a
    scope is the issuer's to say, and `token.storage_prefix` may be wrong.
    """

    def rank(found: Found) -> int:
        valid = found.claims.is_valid(now_s)
        covers = found.claims.scopes is None or not missing(found.claims.scopes, need.scopes)
        if covers and (valid or may_renew(found)):
            return 0 if valid else 1
        return 2 if valid else 3

    return min(candidates, key=rank, default=None)


def _condor_files(folder: Path) -> list[Path]:
    """HTCondor puts a job's tokens into a folder, one ``SERVICE.use`` each; ``scitokens`` is the usual service."""
    usual = folder / "scitokens.use"
    if usual.exists():
        return [usual]
    return sorted(folder.glob("*.use"))[:1]
