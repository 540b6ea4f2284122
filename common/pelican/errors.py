"""Errors of access to a federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import BadInputError, IcestreamError, TransientError

_MOST_TOLD = 12


@dataclass(frozen=True)
class Attempt:
    """Attempt at one source."""

    server: str
    """Scheme, host and port."""
    what: str
    """Answer of the source, or the error."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.server}: {self.what}"


class _Attempted(IcestreamError):
    """Error with the attempts made."""

    def __init__(self, text: str, attempts: Sequence[Attempt] = ()) -> None:
        told = [str(attempt) for attempt in attempts[:_MOST_TOLD]]
        if len(attempts) > _MOST_TOLD:
            told.append(f"and {len(attempts) - _MOST_TOLD} more")
        super().__init__(text + (f" ({'; '.join(told)})" if told else ""))
        self.attempts = tuple(attempts)


class NotFoundError(_Attempted, BadInputError):
    """No source has the file."""


class DeniedError(_Attempted, BadInputError):
    """Every source refuses access: the token is missing, expired, or of another scope."""


class CorruptError(_Attempted, BadInputError):
    """Bytes of every source disagree with the inventory."""


class UnavailableError(_Attempted, TransientError):
    """No source could be reached, or none delivered: it may work later."""
