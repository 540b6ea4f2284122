"""Redirects of web servers that an input may follow: no server on the internet leads to one that only this machine or
its network reaches (a cloud's metadata, a database), and https never leads to http."""

from __future__ import annotations

import asyncio
import socket
from functools import cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from common.errors import BadInputError

if TYPE_CHECKING:
    from types import SimpleNamespace

    import aiohttp
    from yarl import URL

_LOCATIONS = ("Location", "URI")


def http_options(url: str) -> dict[str, Any]:
    """Options of fsspec for the address; none unless it is http or https."""
    return {"client_kwargs": _checked()} if url.startswith(("http://", "https://")) else {}


@cache
def _checked() -> dict[str, Any]:
    """Arguments of aiohttp's sessions. The same object each time: fsspec keeps a client for equal options."""
    import aiohttp  # most runs never need it

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check)
    return {"trace_configs": [trace]}


async def _check(
    session: aiohttp.ClientSession, context: SimpleNamespace, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    """Raise BadInputError unless the redirect may be followed; without an address aiohttp raises by itself."""
    from yarl import URL

    location = next((redirect.response.headers[name] for name in _LOCATIONS if name in redirect.response.headers), "")
    target = redirect.url.join(URL(location))
    if reason := await refusal(redirect.url, target):
        redirect.response.close()
        raise BadInputError(f"{redirect.url.host}: its redirect {reason}; name the file's own address")


async def refusal(origin: URL, target: URL) -> str:
    """Reason not to follow a redirect; empty if it may be."""
    if origin.scheme == "https" and target.scheme != "https":
        return f"to {target.host} leaves https"
    if target.host == origin.host or await is_internal(origin.host or ""):
        return ""
    return f"leads to {target.host}, which is inside of this network" if await is_internal(target.host or "") else ""


async def is_internal(host: str) -> bool:
    """True for a host with an address that the internet doesn't reach; False if its name is known to a proxy only."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(not _is_public(str(address[0])) for *_, address in found)


def _is_public(text: str) -> bool:
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_global
