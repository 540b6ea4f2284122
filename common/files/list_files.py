"""Lists of inputs: text files with an input a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.errors import BadInputError
from common.user_path import user_path


def expand_lists(inputs: Sequence[str]) -> Iterator[str]:
    """Inputs, with each ``@file`` replaced by its lines; empty lines and comments are skipped."""
    for text in inputs:
        if not text.startswith("@"):
            yield text
            continue
        try:
            with user_path(text[1:]).open() as file:
                lines = (line.strip() for line in file)
                yield from (line for line in lines if line and not line.startswith("#"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"{text}: can't be read as a list of inputs ({error})") from None
