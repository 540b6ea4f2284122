"""OAuth2 device flow (RFC 8628): a person approves in any browser, while the process polls the issuer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from common.pelican.tokens.claims import finite
from common.pelican.tokens.errors import IssuerError, IssuerUnavailable
from common.pelican.tokens.oauth import (
    DEVICE_GRANT,
    Endpoints,
    Granted,
    Refused,
    ask_device_code,
    ask_token,
    checked_url,
    text_of,
)
from common.pelican.tokens.store import Client
from common.printable import printable

DEFAULT_INTERVAL_S = 5.0
SLOWER_BY_S = 5.0
"""Permanent increase of the interval at each ``slow_down`` (RFC 8628, section 3.5)."""
LONGEST_INTERVAL_S = 60.0
LONGEST_WAIT_S = 3600.0
_LONGEST_CODE = 100


@dataclass(frozen=True)
class DeviceCode:
    """Codes of one request: for display to the person, and for polling."""

    code: str = field(repr=False)
    user_code: str
    url: str
    url_with_code: str
    """URL that includes the code; empty: the issuer has none."""
    expires_in_s: float
    interval_s: float


def read_device_code(issuer: str, content: Mapping[str, Any]) -> DeviceCode:
    """Checked answer of the device authorisation endpoint: it is shown in a terminal, and opened in a browser."""
    code, user_code = text_of(content, "device_code"), content.get("user_code")
    url = content.get("verification_uri") or content.get("verification_url")
    if not code or not isinstance(user_code, str) or not isinstance(url, str):
        raise IssuerError(f"issuer {issuer}: its device authorisation lacks device_code, user_code or verification_uri")
    if not 0 < len(user_code) <= _LONGEST_CODE or printable(user_code) != user_code:
        raise IssuerError(f"issuer {issuer}: sends a user code that can't be shown")
    complete = content.get("verification_uri_complete")
    return DeviceCode(
        code=code,
        user_code=user_code,
        url=checked_url(url, "verification_uri"),
        url_with_code=checked_url(complete, "verification_uri_complete") if isinstance(complete, str) else "",
        expires_in_s=min(_seconds(content.get("expires_in"), LONGEST_WAIT_S), LONGEST_WAIT_S),
        interval_s=min(max(_seconds(content.get("interval"), DEFAULT_INTERVAL_S), 1.0), LONGEST_INTERVAL_S),
    )


async def grant_by_device(
    session: aiohttp.ClientSession,
    endpoints: Endpoints,
    client: Client,
    scope: str,
    *,
    show: Callable[[DeviceCode], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Granted:
    """Request a code, show it, and wait for the approval. Raises IssuerError with the reason if it is not given."""
    code = read_device_code(endpoints.issuer, await ask_device_code(session, endpoints, client, scope))
    show(code)
    end_s = clock() + code.expires_in_s
    interval_s = code.interval_s
    form = {"grant_type": DEVICE_GRANT, "device_code": code.code}
    while clock() + interval_s < end_s:
        await sleep(interval_s)
        try:
            return await ask_token(session, endpoints.token, client, form, scope)
        except IssuerUnavailable:  # RFC 8628, section 3.5: poll less often
            interval_s = min(2 * interval_s, LONGEST_INTERVAL_S)
        except Refused as refusal:
            match refusal.code:
                case "authorization_pending":
                    pass
                case "slow_down":
                    interval_s += SLOWER_BY_S
                case "access_denied":
                    raise IssuerError(f"issuer {endpoints.issuer}: the request was denied in the browser") from None
                case "expired_token":
                    break
                case _:
                    raise
    raise IssuerError(
        f"issuer {endpoints.issuer}: nobody approved within {code.expires_in_s:.0f} s; give the command again"
    )


def _seconds(value: object, default_s: float) -> float:
    seconds = finite(value)
    return seconds if seconds is not None and seconds > 0 else default_s
