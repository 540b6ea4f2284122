"""The two kinds of expected error; anything else is a bug and ends the process."""

from __future__ import annotations

USER_ERROR_EXIT_CODE = 2


class IcestreamError(Exception):
    """Expected error: its text is one line for the user, shown without a traceback."""


class BadInputError(IcestreamError):
    """Wrong file, value or setting: the text names it, the expected value and the remedy."""


class TransientError(IcestreamError):
    """Temporary error: retried with jitter."""
