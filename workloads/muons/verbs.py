"""Commands of the muon workload."""

from __future__ import annotations

from workloads.base.interface import Verb, lazy

_COMMANDS, _SIMULATOR = "workloads.muons.commands", "workloads.muons.simulator.write"

VERBS = {
    "simulate": Verb(lazy(_SIMULATOR, "simulate"), "Write simulated events with known truth.", "Data"),
    "evaluate": Verb(lazy(_COMMANDS, "evaluate"), "Compare a trained model with the truth: numbers, plots, a page."),
    "generate": Verb(lazy(_COMMANDS, "generate"), "Write muon bundles of a trained model for primaries."),
    "export": Verb(lazy(_COMMANDS, "export"), "Write a trained generator as torch.export and ONNX files."),
}
