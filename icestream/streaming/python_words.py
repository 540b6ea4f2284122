"""Errors of the services in the words of the Python API: arguments of `icestream.stream` instead of options."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from common.errors import BadInputError

_ARGUMENTS = {
    "-i/--input": "inputs",
    "-i": "inputs",
    "--run-dir": "run_dir",
    "--fresh": "another run_dir",
    "--decoders": "decoders",
    "--device": "device",
    "--workload": "workload",
    "--seed": "seed",
    "-c": "config",
    "--ranges": "fetcher.ranges",
    "--done": "fetcher.done",
    "--strict": "fetcher.strict",
    "--token-file": "token.file",
}
_OPTION = "|".join(sorted(map(re.escape, _ARGUMENTS), key=len, reverse=True))
_SET = r"--set (?:'[\w.]+=[^']*'|[\w.]+=[^\s;,)]+)"
_PAIR = re.compile(r"--set (?:'(?P<quoted>[^']*)'|(?P<plain>[^\s;,)]+))")
_PARTS = re.compile(
    r"`[^`]*`"  # a command line, which is one in Python, too
    rf"|(?P<settings>{_SET}(?: {_SET})*)"
    rf"|(?<![\w/-])(?P<option>{_OPTION})(?![\w-])"
)


@contextmanager
def python_words() -> Iterator[None]:
    """Raise a BadInputError of the block with the text of in_python()."""
    try:
        yield
    except BadInputError as error:
        error.args = (in_python(str(error)),)
        raise


def in_python(text: str) -> str:
    """Text with Python's arguments in the place of options; commands between backticks stay."""
    return _PARTS.sub(_in_python, text)


def _in_python(match: re.Match[str]) -> str:
    if option := match["option"]:
        return _ARGUMENTS[option]
    if not match["settings"]:
        return match[0]
    pairs = [pair["quoted"] or pair["plain"] for pair in _PAIR.finditer(match["settings"])]
    return f"settings={dict(map(_setting, pairs))!r}"


def _setting(pair: str) -> tuple[str, object]:
    key, _, value = pair.partition("=")
    with suppress(ValueError):
        return key, json.loads(value)
    return key, value
