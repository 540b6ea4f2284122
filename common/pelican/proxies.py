"""Proxy set in the environment for an address (http_proxy, https_proxy, no_proxy).

aiohttp's ``trust_env`` is not used: it would also send the user's ~/.netrc to servers named by others.
"""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass

from yarl import URL


def proxy_for(url: URL) -> URL | None:
    """Proxy for an address; None: direct connection. Raises ValueError for a variable that holds no URL."""
    text = getproxies().get(url.scheme, "")
    if not text or proxy_bypass(url.authority):
        return None
    return URL(text)
