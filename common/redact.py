"""Texts as they may be shown: URLs without their passwords and queries, where tokens stand."""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")


_TOKEN = re.compile(r"([?&])(?:token|access_token|authz|signature|X-Amz-[^=&]*)=[^&]*", re.IGNORECASE)


def without_tokens(url: str) -> str:
    """The URL without what is renewed now and then and names no other file."""
    return _TOKEN.sub(r"\1", url)


def without_secrets(text: str) -> str:
    """The text, each URL in it without its password and its query. A glob's `?` stays."""
    return _URL.sub(lambda url: _redacted(url.group()), text)


def _redacted(url: str) -> str:
    return re.sub(r"(://)[^/]*@", r"\1…@", re.sub(r"\?.*=.*", "?…", url))
