"""Commands of the direction workload."""

from workloads.base.verb import Verb

_COMMANDS = "workloads.direction.commands"

VERBS = {
    "simulate": Verb(
        f"{_COMMANDS}.simulate:simulate", "Write neutrino events with known truth (a toy detector).", "Data"
    ),
    "seeds": Verb(
        f"{_COMMANDS}.seeds:seeds", "Add the classical fits, which the model `sets` starts from, to files.", "Data"
    ),
    "evaluate": Verb(
        f"{_COMMANDS}.evaluate:evaluate", "Compare predicted with true directions: numbers, plots, a page."
    ),
    "predict": Verb(f"{_COMMANDS}.predict:predict", "Write the predicted directions of events, with their precision."),
}
