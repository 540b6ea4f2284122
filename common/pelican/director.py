"""Parser of a director's answers: servers of an object, and requirements of its namespace. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pelicanfs.dir_header_parser import parse_director_response

from common.pelican.tokens.generation import named_issuers
from common.pelican.url import may_get_token, server_address, server_of

_LINK = re.compile(r"<([^<>]*)>([^<]*)")


@dataclass(frozen=True)
class Sources:
    """Answer of the director for one path, also valid for its neighbours."""

    servers: tuple[str, ...]
    """Prefixes of an object's address before its path, the nearest first."""
    namespace: str
    require_token: bool
    collections: str
    """Server that lists directories; empty if none does."""
    token_generation: str
    """Header that names the issuer of its tokens (common/pelican/tokens/generation.py)."""
    issuers: tuple[str, ...] = ()
    """Issuers of tokens that the namespace accepts."""


def parse_sources(headers: Mapping[str, str], path: str, *, writes: bool = False) -> Sources:
    """Sources from the headers of a redirect for ``path``, without servers that must not see a token if one is needed.

    pelicanfs splits the Link header at every comma, but names may contain commas: links are parsed here.
    """
    answer = parse_director_response(dict(headers))
    links = []
    for url, attributes in _LINK.findall(headers.get("Link", "")):
        priority = re.search(r"pri=([0-9]{1,6})", attributes)
        server = server_of(url, path)
        if server is not None:
            links.append((int(priority[1]) if priority else 1_000_000, server))
    header = answer.x_pel_ns_hdr
    require_token = header.require_token if header else False
    collections = server_address(header.collections_url or "") if header else ""
    servers = dict.fromkeys(server for _, server in sorted(links, key=lambda link: link[0]))
    if require_token or writes:
        servers = {server: None for server in servers if may_get_token(server)}
        collections = collections if may_get_token(collections) else ""
    generation = headers.get("X-Pelican-Token-Generation", "")
    return Sources(
        servers=tuple(servers),
        namespace=header.namespace if header and _is_above(header.namespace, path) else "",
        require_token=require_token,
        collections=collections,
        token_generation=generation,
        issuers=named_issuers(headers.get("X-Pelican-Authorization", ""), generation),
    )


def _is_above(namespace: str, path: str) -> bool:
    """True if the path is in the namespace, whose answer is then reused for other paths."""
    return namespace.startswith("/") and (path + "/").startswith(namespace.rstrip("/") + "/")
