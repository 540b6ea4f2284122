"""Commands of the direction workload."""

from __future__ import annotations

from workloads.base.interface import Verb, lazy

_COMMANDS, _SIMULATOR = "workloads.direction.commands", "workloads.direction.simulator"
_SEEDS = "Add the classical fits, which the model `sets` starts from, to files."

VERBS = {
    "simulate": Verb(lazy(_SIMULATOR, "simulate"), "Write simulated events with known truth.", "Data"),
    "seeds": Verb(lazy(_COMMANDS, "seeds"), _SEEDS, "Data"),
    "evaluate": Verb(lazy(_COMMANDS, "evaluate"), "Compare a trained model with the truth: numbers, plots, a page."),
    "predict": Verb(lazy(_COMMANDS, "predict"), "Write the predicted directions of events, with their precision."),
}
