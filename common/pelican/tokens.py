"""Tokens that the user has: where they are found, which one is taken, and how a run watches it.

Tokens are got by other programs (`pelican`, `htgettoken`, `oidc-agent`); a run reads them again when they change.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.config import TokenConfig
from common.paths import changed_by_others, user_path
from common.pelican import token_claims
from common.pelican.answers import BadTokenError, TokenExpired, json_object
from common.text import duration, shown

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 65_536

_warned: set[str] = set()


def read_token(path: Path, *, shared_folder: bool = False) -> str:
    """Return the token in a file of the user (or root), which nobody else can change: plain text, or JSON with
    ``access_token``. Warns, once, if others can read it.

    ``shared_folder``: every user can create files there, so no link is followed, symbolic or hard: it may lead to one
    of the user's files that was never meant to be sent to a server.

    Raises FileNotFoundError, and BadTokenError for an invalid token or a file that isn't the user's own.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if shared_folder else 0)
    try:
        descriptor = os.open(path, flags)  # O_NONBLOCK: a named pipe must not block
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadTokenError(f"{path}: can't be read ({error.strerror}); expected a token file of your own") from None
    try:
        content = _read_ours(path, descriptor, shared_folder=shared_folder)
    finally:
        os.close(descriptor)
    if reason := changed_by_others(path):
        raise BadTokenError(f"{path}: {reason}")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise BadTokenError(f"{path}: this is no token: it isn't text") from None
    if text.startswith("{"):
        token = (json_object(text) or {}).get("access_token")
        if not isinstance(token, str):
            raise BadTokenError(f"{path}: no JSON with the text access_token; expected one, or a token as plain text")
        text = token
    if wrong := token_claims.what_is_wrong(text):
        raise BadTokenError(f"{path}: this is no token: {wrong}; expected plain text, or JSON with access_token")
    return text


def _read_ours(path: Path, descriptor: int, *, shared_folder: bool) -> bytes:
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        raise BadTokenError(f"{path}: not a file; name a file that holds the token: it is read again and again")
    if info.st_uid not in (os.geteuid(), 0):
        raise BadTokenError(
            f"{path}: belongs to user {info.st_uid}, not to you ({os.geteuid()}), and is not used; copy it to a"
            " file of your own, with mode 0600"
        )
    if shared_folder and (info.st_nlink != 1 or info.st_mode & 0o022):
        what = f"has {info.st_nlink} names" if info.st_nlink != 1 else "can be written by others"
        raise BadTokenError(f"{path}: {what}, so anybody may have put it there; create it again, with mode 0600")
    if info.st_size > MAX_FILE_BYTES:
        raise BadTokenError(f"{path}: {info.st_size} bytes are too many for a token")
    if info.st_mode & 0o044 and str(path) not in _warned:
        _warned.add(str(path))
        mode = stat.S_IMODE(info.st_mode)
        logger.warning("%s: others can read this token (mode %04o); close it: chmod 600 %s", path, mode, path)
    return os.read(descriptor, MAX_FILE_BYTES)


# -------------------------------------------------------------- the search


VARIABLE = "BEARER_TOKEN"
VARIABLE_NAME = f"{VARIABLE} (environment)"
"""Displayed name: text after `BEARER_TOKEN:` or `BEARER_TOKEN=` would be redacted as a token."""
FILE_VARIABLE = "BEARER_TOKEN_FILE"
CONDOR_VARIABLE = "_CONDOR_CREDS"
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


@dataclass(frozen=True)
class Found:
    """Token and its place. The repr doesn't contain the token."""

    place: TokenPlace
    token: str = field(repr=False)
    claims: token_claims.TokenClaims

    def describe(self, now_s: float) -> str:
        """Place, scopes, audience and time left; never the token."""
        return f"{self.place.name}: {self.claims.describe(now_s)}"


def places(config: TokenConfig, environment: Mapping[str, str]) -> list[TokenPlace]:
    """Return the places in the order of the search. A file named in the configuration is the only one.

    WLCG Bearer Token Discovery 1.0 (BEARER_TOKEN, BEARER_TOKEN_FILE, bt_u$UID), and HTCondor's _CONDOR_CREDS.
    """
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
        # A folder of an HTCondor job, with one SERVICE.use each.
        files = sorted(
            Path(environment[CONDOR_VARIABLE]).glob("*.use"), key=lambda path: (path.stem != "scitokens", path)
        )
        found += [TokenPlace(f"{CONDOR_VARIABLE} ({path})", path) for path in files[:1]]
    return found


def look(place: TokenPlace, environment: Mapping[str, str]) -> Found | None:
    """Return the token in one place; None: nothing. Raises BadTokenError."""
    if place.path is None:
        token = environment.get(VARIABLE, "").strip()
        if wrong := token_claims.what_is_wrong(token):
            raise BadTokenError(f"{VARIABLE_NAME}: this is no token: {wrong}; set it to a token, or unset it")
        return Found(place, token, token_claims.read_claims(token))
    try:
        token = read_token(place.path, shared_folder=place.shared_folder)
    except FileNotFoundError:
        if place.required:
            raise BadTokenError(f"{place.name}: no such file; expected one that holds the token") from None
        return None
    return Found(place, token, token_claims.read_claims(token))


def choose(candidates: Iterable[Found], need: token_claims.Need, now_s: float) -> Found | None:
    """Return the best token: a valid one that covers the need, any valid one, any.

    Among equals the first place wins. A token that doesn't cover the need may still work: the issuer defines the
    names of paths in scopes, and `token.storage_prefix` may be wrong.
    """

    def rank(found: Found) -> int:
        if not found.claims.is_valid(now_s):
            return 2
        return 0 if found.claims.scopes is None or not token_claims.missing(found.claims.scopes, need.scopes) else 1

    return min(candidates, key=rank, default=None)


# -------------------------------------------------------------- the token in use


class FoundTokens:
    """The tokens of one federation that were found in the usual places, for one thread.

    Without a recipient (before the start) only the token's own claims are checked.
    """

    def __init__(
        self,
        need: token_claims.Need,
        config: TokenConfig,
        *,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._need = need
        self._config = config
        self._environment = environment
        self._clock = clock
        self._found: Found | None = None
        self._has_looked = False
        self._refused: set[str] = set()
        self._logged: set[str] = set()
        self._problems: list[str] = []
        self._withheld: list[str] = []
        """Tokens that were found and not sent, with the reason."""

    def current(self, to: token_claims.Recipient | None = None) -> str | None:
        """Return the currently valid token for this server; None: send none.

        Raises BadInputError or TransientError with guidance.
        """
        self._look(to)
        found = self._found
        if found is None:
            return None
        if not self._is_valid(found):
            raise TokenExpired(self._guidance(found))
        return found.token

    def refused(self, token: str | None, to: token_claims.Recipient | None = None) -> bool:
        """Search again after a server denied the token. Return True if another token may work now: one that was not
        denied yet."""
        if token is not None:
            self._refused.add(_digest(token))
        self._look(to)
        found = self._found
        is_other = found is not None and found.token != token and _digest(found.token) not in self._refused
        return is_other and found is not None and self._is_valid(found)

    def check(self) -> str:
        """Return one line that names the token to be used, before the start. Raises BadTokenError if it has expired."""
        try:
            self.current()
        except TokenExpired as error:
            raise BadTokenError(str(error)) from None
        return self.describe()

    @property
    def expires_s(self) -> float | None:
        """Time (seconds since 1970) at which the token in use expires; None: no token, or one that doesn't say it."""
        found = self._found
        return found.claims.expires_s if found is not None else None

    def describe(self) -> str:
        """Return the origin of the token, its scopes, audience, time left, and problems; never the token itself."""
        if self._found is None and self._withheld:
            text = "no token was sent: " + "; ".join(self._withheld)
        elif self._found is None:
            searched = ", ".join(place.name for place in places(self._config, self._environment))
            text = f"no token found (searched: {searched}); {self._how_to_get()}"
        else:
            text = self._found.describe(self._clock())
        short = self.not_covered()
        if short:
            text += f"; needed: {short}"
        return "; ".join([text, *self._problems])

    def not_covered(self) -> str:
        """Return the needed scopes that the token doesn't have, as a text; empty: it has all, or none is known."""
        if self._found is None:
            return " ".join(map(str, self._need.scopes)) or "a token for it" * bool(self._withheld)
        if self._found.claims.scopes is None:
            return ""
        return " ".join(map(str, token_claims.missing(self._found.claims.scopes, self._need.scopes)))

    def _is_valid(self, found: Found) -> bool:
        return found.claims.is_valid(self._clock())

    def _look(self, to: token_claims.Recipient | None) -> None:
        """Read all places, and take the best token that may be sent."""
        former, found = self._found, self._best(to)
        self._has_looked = True
        is_worse = found is None or not self._is_valid(found)
        may_stay = former is not None and not self._why_not(former, to)
        if is_worse and may_stay and former and (found is None or self._is_valid(former)):
            # A file may be missing or half-written for a moment: its former token is valid until its end.
            found = former
        self._found = found
        if found is not None and former is not None and found.token != former.token:
            logger.info("new token from %s", found.describe(self._clock()))

    def _why_not(self, found: Found, to: token_claims.Recipient | None) -> str:
        """Return the reason not to send a token there; empty: it may be sent."""
        config = self._config
        consent = token_claims.Consent(config.federation, may_write=config.file is not None or self._need.writes)
        if to is None:
            return token_claims.why_not_here(found.claims, self._need.federation, consent)
        return token_claims.why_not(found.claims, to, consent, config.storage_prefix)

    def _best(self, to: token_claims.Recipient | None) -> Found | None:
        candidates = []
        self._problems = []
        for place in places(self._config, self._environment):
            try:
                found = look(place, self._environment)
            except BadTokenError as error:
                if not self._has_looked and (place.required or place.path is None):
                    raise
                self._problems.append(str(error))
            else:
                candidates += [found] if found is not None else []
        for problem in self._problems:
            self._log_once(logging.WARNING, problem)
        reasons = [(found, self._why_not(found, to)) for found in candidates]
        candidates = [found for found, reason in reasons if not reason]
        self._withheld = [shown(f"the token of {found.place.name}: {reason}") for found, reason in reasons if reason]
        for text in self._withheld:
            self._log_once(
                logging.INFO, f"not sent to {to.server if to is not None else self._need.federation}: {text}"
            )
        fresh = [found for found in candidates if _digest(found.token) not in self._refused]
        return choose(fresh or candidates, self._need, self._clock())

    def _log_once(self, level: int, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            logger.log(level, "%s", text)

    def _guidance(self, found: Found) -> str:
        """Return the description of the expired token ``found``, and the remedy."""
        ended_s = self._clock() - (found.claims.expires_s or 0.0)
        needed = " ".join(map(str, self._need.scopes)) or "any storage scope"
        if found.place.path is None:
            cure = (
                f"{VARIABLE} can't change in a running process: start again with --token-file, a file that is renewed"
            )
        else:
            cure = "put a new token into this file; a run that is waiting continues by itself"
        text = f"the token of {found.place.name} expired {duration(ended_s)} ago; needed: {needed}; {cure}"
        return "; ".join([text, self._how_to_get(), *self._problems])

    def _how_to_get(self) -> str:
        return token_claims.how_to_get(self._need.federation, self._need.path, writes=self._need.writes)


def _digest(token: str) -> str:
    """Return the digest of a token, for comparison: an object that keeps digests can't print a token."""
    return hashlib.sha256(token.encode()).hexdigest()
