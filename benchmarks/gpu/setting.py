"""Setting of a measurement: device and sizes, the same for every stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Device and sizes. Events are those of the simulator's `bench` preset, 4.6 muons each in the mean."""

    device: str
    """``cpu``, ``cuda`` or ``cuda:N``."""
    events: tuple[int, ...] = (128_000, 8_192, 1_000_000)
    """Batch sizes of the step, most important first."""
    network: tuple[tuple[str, int], ...] = ()
    """Sizes of the networks that differ from the defaults."""
    microbatch_particles: int = 65_536
    """As `stream.max_particles`, by default: largest microbatch of the batches that the trainer feeds."""
    repeats: int = 5
    matrix: int = 8192
    """Rows and columns of the matrix product of the ceilings."""
    copy_mib: int = 256
    """Size of one copy of the ceilings, and of the arena's copies."""
    ragged_steps: int = 5000
    run_events: int = 1_000_000
    """Events of the run from files."""

    @property
    def is_cuda(self) -> bool:
        """True on a GPU."""
        return self.device.startswith("cuda")

    @property
    def section(self) -> dict[str, Any]:
        """Section `trainer.wgan` of the configuration: all steps but the first are of generator and critic."""
        return {"network": dict(self.network), "likelihood_steps": 1}


SMALL = (("hidden", 16),)


def quick(device: str) -> Setting:
    """Tiny sizes: does it work?"""
    return Setting(
        device,
        events=(256, 64),
        network=SMALL,
        microbatch_particles=600,
        repeats=1,
        matrix=128,
        copy_mib=1,
        ragged_steps=20,
        run_events=4_000,
    )
