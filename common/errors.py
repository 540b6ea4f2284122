"""The two kinds of expected error; anything else is a bug and ends the process."""

from __future__ import annotations

USER_ERROR_EXIT_CODE = 2


class IcestreamError(Exception):
    """Expected: its text is one line for the user, who sees no traceback."""


class BadInputError(IcestreamError):
    """A file, value or setting is wrong: the text says which, what was expected and what to do."""


class TransientError(IcestreamError):
    """May pass: worth another try, with jitter."""
