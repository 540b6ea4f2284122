"""Examples of the README and the pages: command lines and Python blocks, each with its place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
_FENCE = re.compile(r"^```(\w*)$")
_INLINE = re.compile(r"`(icestream [^`]+)`")


@dataclass(frozen=True)
class CommandLine:
    """One command as it is typed, without its comment."""

    place: str
    words: tuple[str, ...]
    """Of inline code with a value for the last option: `icestream simulate --preset` names one without."""
    is_inline: bool = False


@dataclass(frozen=True)
class PythonBlock:
    """One fenced block of Python; ``not_run`` is the reason of a marker above it."""

    place: str
    source: str
    not_run: str


def pages() -> list[Path]:
    """Return README, CONTRIBUTING and every page except the decisions, which name what is gone."""
    every = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if page.name != "decisions.md"]


def command_lines(page: Path, program: str) -> Iterator[CommandLine]:
    """Commands of a program in the blocks and inline code of a page, without `…`, which stands for more arguments."""
    text = page.read_text().replace("\\\n", " ")
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{page.relative_to(ROOT)}:{number}"
        found = re.match(rf"^ {{4,}}(?:exec )?({program} .*)$", line)
        inline = [re.sub(r"( --[\w-]+)$", r"\1 VALUE", command) for command in _INLINE.findall(line)]
        typed = [found[1]] if found else inline if program == "icestream" else []
        for command in typed:
            words = words_of(command)
            if words[1:]:
                yield CommandLine(place, words, is_inline=not found)


def words_of(command: str) -> tuple[str, ...]:
    """Words of a command up to its comment, pipe or continuation by another command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|;&<>"):
            break
        if word not in ("…", "..."):
            words.append(word)
    return tuple(words)


def python_blocks(page: Path) -> list[PythonBlock]:
    """Fenced blocks of Python of a page, in order."""
    blocks: list[PythonBlock] = []
    language, body, start, reason = "", [""], 0, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if marker := _NOT_RUN.match(line):
            reason = marker[1]
        elif fence and not language:
            language, body, start = fence[1] or "text", [], number
        elif fence:
            if language == "python":
                blocks.append(PythonBlock(f"{page.relative_to(ROOT)}:{start}", "\n".join(body) + "\n", reason))
            language, reason = "", ""
        else:
            body.append(line)
    return blocks
