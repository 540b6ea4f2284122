"""Uses of random numbers in the benchmark. Pure."""

from __future__ import annotations

from workloads.base.random_streams import Purpose


class PhysicsPurpose(Purpose):
    """See Purpose."""

    TRAINING_EVENTS = "physics training events"
    EVALUATION_EVENTS = "physics evaluation events"
    TAIL_PRIMARIES = "physics tail primaries"
    REDRAW = "physics redraw"
    GENERATION = "physics generation"
    PROCESS = "physics process"
    """Torch's global generator at the start of a run."""
