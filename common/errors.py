"""The two kinds of expected error; anything else is a bug and ends the process."""

from __future__ import annotations

from collections.abc import Sequence

USER_ERROR_EXIT_CODE = 2
TRY_AGAIN_EXIT_CODE = 75
"""Exit code of a node that ends because of another one, EX_TEMPFAIL of sysexits.h: start all nodes again."""


class IcestreamError(Exception):
    """Expected error: its text is one line for the user, shown without a traceback."""


class BadInputError(IcestreamError):
    """Wrong file, value or setting: the text names it, the expected value and the remedy."""


class BadInputsError(BadInputError):
    """Several mistakes at once, each one line."""

    def __init__(self, what: str, lines: Sequence[str]) -> None:
        super().__init__(f"{what} has {len(lines)} mistakes: " + "; ".join(lines))
        self.title = f"{what} has {len(lines)} mistakes"
        self.lines = tuple(lines)


class TransientError(IcestreamError):
    """Temporary error: retried with jitter."""


class TryAgainError(IcestreamError):
    """Another node is gone, or was started again without this one: all nodes have to be started again."""
