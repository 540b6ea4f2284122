"""Commands of the direction workload."""

from __future__ import annotations

from workloads.base.interface import Verb, lazy

VERBS = {
    "simulate": Verb(
        lazy("workloads.direction.simulator", "simulate"), "Write simulated events with known truth.", "Data"
    ),
    "seeds": Verb(
        lazy("workloads.direction.commands", "seeds"),
        "Add the classical fits, which the model `sets` starts from, to files.",
        "Data",
    ),
    "evaluate": Verb(
        lazy("workloads.direction.commands", "evaluate"),
        "Compare a trained model with the truth: numbers, plots, a page.",
    ),
    "predict": Verb(
        lazy("workloads.direction.commands", "predict"),
        "Write the predicted directions of events, with their precision.",
    ),
}
