"""Redaction of texts: tokens are removed, and passwords and queries (which may contain tokens) of URLs."""

from __future__ import annotations

import base64
import re

from common.printable import MOST, printable

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"<>]+")
_WEB = re.compile(r"(?:https?|wss?|davs?)://", re.IGNORECASE)
_TOKEN = re.compile(r"([?&])(?:token|access_token|authz|signature|X-Amz-[^=&]*)=[^&]*", re.IGNORECASE)
_OF_A_SERVICE = re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-)[\w-]{16,}", re.ASCII)
"""Tokens of Hugging Face, GitHub and GitLab, by how they begin."""
_OPTION = re.compile(r"(?<![\w-])(--?(?:password|passwd|secret)[ =])[^\s'\"]+", re.IGNORECASE)
_ESCAPED = re.compile(r'(\\"(?:\w*token|\w*secret|\w*key|passw(?:or)?d)\\"\s*:\s*\\")(?:[^"\\]|\\[^"])+', re.IGNORECASE)
"""A field of JSON that is itself a text of JSON."""
_JWT = re.compile(r"eyJ[\w-]*\.[\w-]+(?:\.[\w-]*)*", re.ASCII)

_CLOSING = r"\"'<>,;)}\]"
_VALUE = rf"(?!(?:null|true|false|None)(?:[\s{_CLOSING}:]|$))(?:[^\s{_CLOSING}…]|[{_CLOSING}](?=[^\s{_CLOSING}]))+"
"""Value up to white space or its closing character: a quote or bracket inside belongs to it. Never JSON keywords."""
_QUOTE = r"(?:[\[(]?b?[\"'])?"
_SPACE = r"(?:\s|%20|\+)+"
_PROSE = (
    r"(?!(?:tokens?|authentication|authori[sz]ation|None)(?=[.,;:)\"']*(?:\s|$)))"
    r"(?!(?:error|realm|scope)(?:_\w+)?=[\"']\w)"
)
"""Prose that must stay: `the bearer token has expired`, `Bearer error="invalid_token"`; but `Bearer token.x` is a
token."""
_BEARER = re.compile(rf"\b(Bearer{_SPACE}[\"']?){_PROSE}{_VALUE}", re.IGNORECASE)
_AUTHORIZATION = re.compile(
    rf"\b((?:proxy-)?authorization[\"']?\s*[:=]\s*{_QUOTE}(?:(?:Basic|Bearer|Digest|Negotiate|Token){_SPACE})?){_VALUE}",
    re.IGNORECASE,
)
_FIELD = re.compile(
    r"\b((?:authz|access_token|refresh_token|id_token|device_code|client_secret|BEARER_TOKEN|(?:auth|private)-token|api-key"
    r"|\w*(?:secret_access_key|secret_key|account_key|access_key_id))"
    r"[\"']?\s*(?:=|:|%3D)\s*"
    rf"{_QUOTE}(?:Bearer{_SPACE})?){_VALUE}",
    re.IGNORECASE,
)
_WORD = re.compile(
    r"((?:token|secret|api_?key|passw(?:or)?d|passphrase)(?:[\"']?\s*[=:]\s*[\[(]?b?[\"']|=|%3D))" + _VALUE,
    re.IGNORECASE,
)
"""Values after a colon only if quoted: `no token: BEARER_TOKEN` is prose."""
_COOKIE = re.compile(r"\b(cookie[\"']?\s*[=:]\s*[\[(]?b?[\"']?)(?:[^\"'\\\r\n…]|\\.)+", re.IGNORECASE)
_BASIC = re.compile(r"\b(Basic\s+[\"']?)([A-Za-z0-9+/_-]{4,}={0,2})", re.IGNORECASE)
_PASSWORD = re.compile(r"(://)[^\s/@:\[]*:(?![0-9]{1,5}(?:/|$))[^\s@]*@")


def without_tokens(url: str) -> str:
    """URL without its tokens, which are renewed but don't change the named file."""
    return _TOKEN.sub(r"\1", url)


def without_secrets(text: str) -> str:
    """Text without anything that looks like a token, and its URLs without password and query.

    A glob's `?` stays.
    """
    text = _PASSWORD.sub(r"\1…@", text)
    text = _URL.sub(lambda url: _redacted(url.group()), text)
    text = _OF_A_SERVICE.sub("…", text)
    for pattern in (_BEARER, _AUTHORIZATION, _FIELD, _ESCAPED, _WORD, _OPTION, _COOKIE):
        text = pattern.sub(r"\1…", text)
    text = _BASIC.sub(_redacted_basic, text)
    return _JWT.sub("…", text)


def shown(text: str, most: int = MOST) -> str:
    """Printable form of external text: one bounded line without secrets."""
    return printable(without_secrets(printable(text, 8 * most)), most)


def _redacted(url: str) -> str:
    """URL without secrets; of a web address without the whole query, which may be a secret without a name. Elsewhere
    `?` may be a glob's."""
    query = r"\?.+" if _WEB.match(url) else r"\?.*=.*"
    url = re.sub(r"#.*=.*", "#…", re.sub(query, "?…", url))
    return re.sub(r"(://)[^/]*@", r"\1…@", url)


def _redacted_basic(found: re.Match[str]) -> str:
    """Basic credentials without `user:password`; other words after "basic" are kept."""
    text = found[2].rstrip("=")
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_" if set(text) & set("-_") else None)
    except ValueError:
        return found[0]
    return f"{found[1]}…" if b":" in content else found[0]
