"""What each loader has, by its own documentation."""

from __future__ import annotations

from typing import NamedTuple


class Claims(NamedTuple):
    """Answers for one loader, by question, and the pages that they are from."""

    answers: dict[str, str]
    sources: str


QUESTIONS: dict[str, str] = {}
CLAIMS: dict[str, Claims] = {}
