"""The proxy that the environment names for an address (http_proxy, https_proxy, no_proxy).

Not aiohttp's ``trust_env``: that would also send the user's ~/.netrc to servers that others name.
"""

from __future__ import annotations

from urllib.request import getproxies_environment, proxy_bypass_environment

from yarl import URL


def proxy_for(url: URL) -> URL | None:
    """None: the request goes straight to the server. Raises ValueError for a variable that holds no URL."""
    proxies = getproxies_environment()
    if proxy_bypass_environment(url.authority, proxies):  # type: ignore[arg-type]
        return None
    text = proxies.get(url.scheme, "")
    return URL(text) if text else None
