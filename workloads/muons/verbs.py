"""Commands of the muon workload."""

from __future__ import annotations

from workloads.base.interface import Verb, lazy

VERBS = {
    "simulate": Verb(
        lazy("workloads.muons.simulator.write", "simulate"), "Write simulated events with known truth.", "Data"
    ),
    "evaluate": Verb(
        lazy("workloads.muons.commands", "evaluate"), "Compare a trained model with the truth: numbers, plots, a page."
    ),
    "generate": Verb(
        lazy("workloads.muons.commands", "generate"), "Write muon bundles of a trained model for primaries."
    ),
    "export": Verb(
        lazy("workloads.muons.commands", "export"), "Write a trained generator as torch.export and ONNX files."
    ),
}
