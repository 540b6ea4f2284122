"""Texts as they may be shown: without tokens, and URLs without their passwords and queries, where tokens stand."""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_TOKEN = re.compile(r"([?&])(?:token|access_token|authz|signature|X-Amz-[^=&]*)=[^&]*", re.IGNORECASE)
_JWT = re.compile(r"eyJ[\w-]*\.[\w-]+(?:\.[\w-]*)*", re.ASCII)
_BEARER = re.compile(
    r"\b(Bearer(?:\s+|%20|\+)[\"']?)(?!(?:tokens?|error|realm|scope|auth\w*|None)\b)[^\s\"',;&)<>]+", re.IGNORECASE
)
_FIELD = re.compile(
    r"\b((?:authz|access_token|refresh_token|id_token|device_code|client_secret|BEARER_TOKEN)[\"']?\s*(?:=|:|%3D)\s*"
    r"b?[\"']?(?:Bearer(?:\s+|%20|\+))?)[^\s\"'&,;)}<>…]+",
    re.IGNORECASE,
)
_BASIC = re.compile(r"\b(Basic\s+)[A-Za-z0-9+/]{8,}={0,2}")


def without_tokens(url: str) -> str:
    """The URL without what is renewed now and then and names no other file."""
    return _TOKEN.sub(r"\1", url)


def without_secrets(text: str) -> str:
    """The text without anything that looks like a token, each URL in it without its password and its query.

    A glob's `?` stays.
    """
    text = _URL.sub(lambda url: _redacted(url.group()), text)
    for pattern in (_BEARER, _FIELD, _BASIC):
        text = pattern.sub(r"\1…", text)
    return _JWT.sub("…", text)


def _redacted(url: str) -> str:
    return re.sub(r"(://)[^/]*@", r"\1…@", re.sub(r"\?.*=.*", "?…", url))
