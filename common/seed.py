"""Seeds as users give them, in Python and in settings. Pure."""

from __future__ import annotations

import operator
from typing import Any

from common.errors import BadInputError


def no_bool(seed: Any) -> Any:
    """Return the seed. Raises ValueError for True and False, which Python takes for 1 and 0: another argument was
    meant."""
    if isinstance(seed, bool):
        raise ValueError("a whole number")
    return seed


def checked_seed(seed: Any) -> int:
    """Return the seed as an int. Raises BadInputError for anything but a whole number of at least 0."""
    try:
        number = operator.index(no_bool(seed))
    except (TypeError, ValueError):
        raise BadInputError(f"seed = {seed!r}: expected a whole number") from None
    if number < 0:
        raise BadInputError(f"seed = {number}: must not be negative")
    return number
