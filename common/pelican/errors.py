"""Why something could not be had from a federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import BadInputError, IcestreamError, TransientError

_MOST_TOLD = 12


@dataclass(frozen=True)
class Attempt:
    """One source that was tried."""

    server: str
    """Scheme, host and port."""
    what: str
    """Its answer, or what went wrong."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.server}: {self.what}"


class _Attempted(IcestreamError):
    """An error that knows what was tried."""

    def __init__(self, text: str, attempts: Sequence[Attempt] = ()) -> None:
        told = [str(attempt) for attempt in attempts[:_MOST_TOLD]]
        if len(attempts) > _MOST_TOLD:
            told.append(f"and {len(attempts) - _MOST_TOLD} more")
        super().__init__(text + (f" ({'; '.join(told)})" if told else ""))
        self.attempts = tuple(attempts)


class NotFoundError(_Attempted, BadInputError):
    """No source has it."""


class DeniedError(_Attempted, BadInputError):
    """Every source refuses it: the token is missing, expired, or of another scope."""


class CorruptError(_Attempted, BadInputError):
    """What each source sent is not what the inventory says."""


class UnavailableError(_Attempted, TransientError):
    """No source could be reached, or none delivered: it may work later."""
