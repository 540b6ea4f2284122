"""Text for people: without secrets and control characters, lengths of time as they are read, and safe names."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence

MOST = 2000
"""Maximum characters shown of one text."""

_REPLACED = "\N{REPLACEMENT CHARACTER}"
_SPACES = re.compile(r"[\t\n\r\x0b\x0c][\t\n\r\x0b\x0c ]*")


def printable(text: str, most: int = MOST) -> str:
    """One line of at most ``most`` characters, without any that moves the cursor, controls a terminal or hides others.

    Removed are C0 and C1 (with which escape sequences begin), line separators, bidirectional and invisible characters,
    surrogates.
    """
    text = _SPACES.sub(" ", text) if not text.isprintable() else text
    text = text if text.isprintable() else "".join(char if char.isprintable() else _REPLACED for char in text)
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def printable_lines(text: str) -> str:
    """Printable form of several lines without a limit, for tracebacks and tables: see printable()."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "\n".join(printable(line, len(line) + 1) for line in text.split("\n"))


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


HIDDEN = (".", "_")
"""First characters of such names."""


def told(text: str, left_out: Sequence[str]) -> str:
    """Return the sentence on what was left out of an input."""
    return (
        f'{shown(text)}: left out {len(left_out)} with a name that begins with "." or "_", the first is'
        f" {shown(min(left_out))}; name a file by itself to read it"
    )


_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A length of time in its two largest units: ``2 d 3 h``, ``4 min 10 s``, ``7 s``; ``unknown`` if not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    return " ".join(f"{count} {name}" for name, count in _two_largest(seconds))


def compact_duration(seconds: float) -> str:
    """A length of time for a short line: ``2d3h``, ``4m10s``, ``7s``; ``?`` if not finite."""
    if not math.isfinite(seconds):
        return "?"
    return "".join(f"{count}{name[0]}" for name, count in _two_largest(seconds))


def _two_largest(seconds: float) -> list[tuple[str, int]]:
    left = int(seconds)
    parts: list[tuple[str, int]] = []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count or (name == "s" and not parts):
            parts.append((name, count))
    return parts[:2]


TENSORBOARD_FOLDER = "tensorboard"
_NOT_SAFE = re.compile(r"[^\w.+=@,-]+")


def sanitised(name: str) -> str:
    """Return a path component that is valid in any shell, URL and file system: never empty, hidden, `.` or `..`."""
    return _NOT_SAFE.sub("_", name).lstrip(".")[:200] or "_"
