"""Settings of a decoder process. The stream's settings define the decoding itself."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from common.config import ConfigBranch


class DecoderConfig(ConfigBranch):
    """Settings read by services/decoder. They never change a unit's bytes."""

    credit: int = Field(2, ge=1)
    """Units leased to one decoder at a time: one in work, the others to avoid waits for the next."""
    threads: int = Field(1, ge=1)
    """Threads of one decoder, of Arrow and of BLAS (unless OMP_NUM_THREADS or a similar variable is set). With 1,
    N decoders use N cores."""
    affinity: str = ""
    """Cores for pinning: each decoder runs on `threads` cores that no other decoder on this host uses. `auto`: any
    usable core; a list such as `2-15,20`: only these. Empty: no pinning."""

    @field_validator("affinity", mode="before")
    @classmethod
    def _core_list(cls, value: object) -> str:
        text = str(value).replace(" ", "")  # `--set decoder.affinity=3` gives a number
        if text not in ("", "auto"):
            parse_cores(text)
        return text


def parse_cores(text: str) -> tuple[int, ...]:
    """Cores in a list like "2-15,20", each once, in that order. Raises ValueError for anything else."""
    cores: dict[int, None] = {}
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError('"", auto, or a list of cores such as 2-15,20')
        cores.update(dict.fromkeys(range(first, last + 1)))
    return tuple(cores)
