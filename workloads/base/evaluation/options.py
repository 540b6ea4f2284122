"""Options of an evaluation that every workload has. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_type_hints

from common.errors import BadInputError
from common.python_paths import given_path
from common.seed import checked_seed

_MIN_EVENTS = 100


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Validated options of an evaluation. Raises BadInputError."""

    checkpoint: Path
    inputs: tuple[str, ...]
    events: int = 40_000
    """Largest number of events; 0: all."""
    seed: int = 0
    output: Path | None = None
    """Folder of the report; None: the default one."""
    write: bool = True
    """Write the report, and not only return it."""
    thresholds: Path | None = None
    device: str = "auto"
    threads: int = 1
    """CPU threads of torch."""
    bootstraps: int = 100
    toml: Path | None = None
    assignments: tuple[str, ...] = ()

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Return the options that were given to `icestream.evaluate`: paths may be texts. Raises BadInputError."""
        paths = {name for name, kind in get_type_hints(cls).items() if kind in (Path, Path | None)}
        values: dict[str, Any] = {
            name: given_path(value, name) if name in paths and value is not None else value
            for name, value in options.items()
        }
        return cls(**values)

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise BadInputError(f"--device {self.device}: use auto, cpu, cuda or cuda:N")
        if self.events and self.events < _MIN_EVENTS:
            raise BadInputError(
                f"--events {self.events}: at least {_MIN_EVENTS} are needed to say anything; 0 takes all"
            )
