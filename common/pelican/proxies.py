"""The proxy that the environment names for an address (http_proxy, https_proxy, no_proxy).

Not aiohttp's ``trust_env``: that would also send the user's ~/.netrc to servers that others name.
"""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass

from yarl import URL


def proxy_for(url: URL) -> URL | None:
    """None: the request goes straight to the server. Raises ValueError for a variable that holds no URL."""
    text = getproxies().get(url.scheme, "")
    if not text or proxy_bypass(url.authority):
        return None
    return URL(text)
