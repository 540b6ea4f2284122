"""Currently valid token: found, watched, renewed during the run."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from common.durations import duration
from common.pelican.tokens.config import TokenConfig
from common.pelican.tokens.errors import BadTokenError, IssuerError, IssuerUnavailable, TokenExpired
from common.pelican.tokens.find import VARIABLE, Found, choose, look, places, signatures
from common.pelican.tokens.recipient import Consent, Recipient, why_not, why_not_here
from common.pelican.tokens.scopes import Need, missing
from common.pelican.tokens.store import StoredToken, load_token, locked, save
from common.redact import shown

logger = logging.getLogger(__name__)

RETRY_S = 10.0
"""Time after which an issuer that didn't answer is asked again."""
REFUSED_RETRY_S = 600.0
"""Minimum time between renewals of a refused token: mostly the scope is wrong, which a new one shares."""
LOCK_WAIT_S = 60.0

Renew = Callable[[StoredToken], Awaitable[StoredToken]]
"""Renewal of one stored token. Raises IssuerError where a retry is of no use, else IssuerUnavailable."""


class FoundTokens:
    """Tokens found in the usual places: a `common.pelican.client.TokenSource` for one event loop.

    Without a recipient (before the start) only the token's own claims are checked.
    """

    def __init__(
        self,
        need: Need,
        config: TokenConfig,
        *,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
        renew: Renew | None = None,
    ) -> None:
        self._need = need
        self._config = config
        self._environment = environment
        self._clock = clock
        self._renew = renew or renew_at_issuer
        self._lock = asyncio.Lock()
        self._found: Found | None = None
        self._seen: object = None
        self._refused: set[str] = set()
        self._dead: set[str] = set()
        self._retry_at_s = 0.0
        self._refused_renewal_at_s = 0.0
        self._problems: list[str] = []
        self._withheld: list[str] = []
        """Tokens that were found and not sent, with the reason."""

    async def current(self, to: Recipient | None = None) -> str | None:
        """Currently valid token: see TokenSource."""
        found = self._found
        if found is None or self._is_ending(found) or self._has_changed() or self._why_not(found, to):
            async with self._lock:
                self._forget_refusals()
                await self._look(to)
                found = self._found
        if found is None:
            return None
        if not found.claims.is_valid(self._clock()):
            raise TokenExpired(self._guidance(found))
        return found.token

    async def refused(self, token: str | None, to: Recipient | None = None) -> bool:
        """Search again: see TokenSource. Each token is tried once; all are tried again when a place changes."""
        async with self._lock:
            self._forget_refusals()
            if token is not None:
                self._refused.add(_digest(token))
            await self._look(to)
            found = self._found
            is_due = self._clock() >= self._refused_renewal_at_s
            if found is not None and found.token == token and found.stored is not None and is_due:
                self._refused_renewal_at_s = self._clock() + REFUSED_RETRY_S
                await self._renew_found(found, found.stored)
            found = self._found
            is_other = found is not None and found.token != token and _digest(found.token) not in self._refused
            return is_other and found is not None and found.claims.is_valid(self._clock())

    async def check(self) -> str:
        """One line that names the token to be used, before the start. Raises BadTokenError if it has expired."""
        try:
            await self.current()
        except TokenExpired as error:
            raise BadTokenError(str(error)) from None
        return self.describe()

    @property
    def expires_s(self) -> float | None:
        """Time at which the token in use expires: see TokenSource."""
        found = self._found
        return found.claims.expires_s if found is not None else None

    def describe(self) -> str:
        """Origin of the token, its scopes, audience, time left, and problems; never the token itself."""
        if self._found is None and self._withheld:
            text = "no token was sent: " + "; ".join(self._withheld)
        elif self._found is None:
            searched = ", ".join(place.name for place in places(self._config, self._environment))
            text = f"no token found (searched: {searched}); `icestream token` gets one"
        else:
            text = self._found.describe(self._clock())
        short = self.not_covered()
        if short:
            text += f"; needed: {short}"
        return "; ".join([text, *self._problems])

    def not_covered(self) -> str:
        """Needed scopes that the token doesn't have, as a text; empty: it has all, or none is known."""
        if self._found is None:
            return " ".join(map(str, self._need.scopes)) or "a token for it" * bool(self._withheld)
        if self._found.claims.scopes is None:
            return ""
        return " ".join(map(str, missing(self._found.claims.scopes, self._need.scopes)))

    def _is_ending(self, found: Found) -> bool:
        return not found.claims.is_valid(self._clock(), found.claims.margin_s(self._config.margin_s))

    def _has_changed(self) -> bool:
        return signatures(self._config, self._environment) != self._seen

    def _forget_refusals(self) -> None:
        if self._has_changed():
            self._refused.clear()

    async def _look(self, to: Recipient | None) -> None:
        """Read all places, take the best token that may be sent, renew it if it is ending."""
        seen = signatures(self._config, self._environment)
        former, found = self._found, self._best(to)
        self._seen = seen
        is_worse = found is None or not found.claims.is_valid(self._clock())
        may_stay = former is not None and not self._why_not(former, to)
        if is_worse and may_stay and former and (found is None or former.claims.is_valid(self._clock())):
            found = (
                former  # a file may be missing or half-written for a moment: its former token is valid until its end
            )
        self._found = found
        if found is not None and former is not None and found.token != former.token:
            logger.info("new token from %s", found.describe(self._clock()))
        if found is not None and found.stored is not None and self._is_ending(found):
            await self._renew_found(found, found.stored)

    def _why_not(self, found: Found, to: Recipient | None) -> str:
        """Reason not to send a token there; empty: it may be sent."""
        stored, config = found.stored, self._config
        federation = stored.federation if stored is not None else config.federation
        is_asked_for = stored is not None or config.file is not None
        consent = Consent(federation, may_write=is_asked_for or self._need.writes)
        if to is None:
            return why_not_here(found.claims, self._need.federation, consent)
        return why_not(found.claims, to, consent, config.storage_prefix)

    def _best(self, to: Recipient | None) -> Found | None:
        candidates, former, withheld = [], self._problems, self._withheld
        self._problems = []
        for place in places(self._config, self._environment):
            try:
                found = look(place, self._environment, self._need.federation)
            except BadTokenError as error:
                if self._seen is None and (place.required or place.path is None):
                    raise
                self._problems.append(str(error))
            else:
                candidates += [found] if found is not None else []
        for problem in self._problems:
            if problem not in former:
                logger.warning("%s", problem)
        reasons = [(found, self._why_not(found, to)) for found in candidates]
        candidates = [found for found, reason in reasons if not reason]
        self._withheld = [shown(f"the token of {found.place.name}: {reason}") for found, reason in reasons if reason]
        for text in self._withheld:
            if text not in withheld:
                logger.info("not sent to %s: %s", to.server if to is not None else self._need.federation, text)
        fresh = [found for found in candidates if _digest(found.token) not in self._refused]
        return choose(fresh or candidates, self._need, self._clock(), self._may_renew)

    def _may_renew(self, found: Found) -> bool:
        return (
            found.stored is not None
            and bool(found.stored.refresh_token)
            and _digest(found.stored.refresh_token) not in self._dead
        )

    async def _renew_found(self, found: Found, stored: StoredToken) -> None:
        """Renew a token, and keep the old one if that fails: it may still be valid for some time."""
        if not self._may_renew(found) or found.place.path is None or self._clock() < self._retry_at_s:
            return
        try:
            renewed = await self._renewed_once(found, stored)
        except IssuerUnavailable as error:
            self._retry_at_s = self._clock() + RETRY_S
            self._problems.append(str(error))
            logger.warning("the token can't be renewed now: %s", error)
        except (BadTokenError, FileNotFoundError) as error:
            self._problems.append(str(error))
        except IssuerError as error:
            self._dead.add(_digest(stored.refresh_token))
            self._problems.append(str(error))
            logger.warning("the token can't be renewed: %s", error)
        else:
            self._found = replace(found, token=renewed.access_token, claims=renewed.claims, stored=renewed)
            self._seen = signatures(self._config, self._environment)
            logger.info("token renewed: %s", self._found.describe(self._clock()))

    async def _renewed_once(self, found: Found, stored: StoredToken) -> StoredToken:
        """Token renewed by this process, or by another one in the meantime: a refresh token may work only once."""
        path = found.place.path
        assert path is not None
        end_s = time.monotonic() + LOCK_WAIT_S
        while time.monotonic() < end_s:
            with locked(path) as is_ours:
                if is_ours:
                    newest = load_token(path)
                    if newest.access_token == stored.access_token or _ends_before(newest, stored):
                        newest = await self._renew(stored)
                        _keep(path, newest)
                    return newest
            await asyncio.sleep(0.1)
        raise IssuerUnavailable(f"{path}: another process has been renewing this token for {LOCK_WAIT_S:.0f} s")

    def _guidance(self, found: Found) -> str:
        """Description of the expired token ``found``, and the remedy."""
        ended_s = self._clock() - (found.claims.expires_s or 0.0)
        needed = " ".join(map(str, self._need.scopes)) or "any storage scope"
        if found.place.path is None:
            cure = (
                f"{VARIABLE} can't change in a running process: start again with --token-file, a file that is renewed"
            )
        elif found.stored is not None:
            cure = "run `icestream token` again with the same inputs"
        else:
            cure = "put a new token into this file, or run `icestream token` with the same inputs"
        if found.place.path is not None:
            cure += "; a run that is waiting continues by itself"
        text = f"the token of {found.place.name} expired {duration(ended_s)} ago; needed: {needed}; {cure}"
        return "; ".join([text, *self._problems])


async def renew_at_issuer(stored: StoredToken) -> StoredToken:
    """Token renewed by the issuer that granted it."""
    from common.pelican.tokens.oauth import open_session, refresh  # aiohttp takes a moment

    async with open_session() as session:
        return await refresh(session, stored, time.time)


def _ends_before(token: StoredToken, other: StoredToken) -> bool:
    """True if the other one was renewed and could not be stored."""
    end_s, other_s = token.claims.expires_s, other.claims.expires_s
    return end_s is not None and other_s is not None and end_s < other_s


def _keep(path: Path, token: StoredToken) -> None:
    try:
        save(path, token)
    except OSError as error:  # the old refresh token is invalid now: continue with the one in memory
        logger.warning("%s: the renewed token can't be stored (%s); it lasts for this process", path, error.strerror)


def _digest(token: str) -> str:
    """Digest of a token, for comparison: an object that keeps digests can't print a token."""
    return hashlib.sha256(token.encode()).hexdigest()
