"""Commands of the muon workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.base.interface import Verb

if TYPE_CHECKING:
    import click


def _simulate() -> click.Command:
    from workloads.muons.simulator.write import simulate

    return simulate


def _evaluate() -> click.Command:
    from workloads.muons.commands import evaluate

    return evaluate


def _generate() -> click.Command:
    from workloads.muons.commands import generate

    return generate


def _export() -> click.Command:
    from workloads.muons.commands import export

    return export


VERBS = {
    "simulate": Verb(_simulate, "Write simulated events with known truth.", "Data"),
    "evaluate": Verb(_evaluate, "Compare a trained model with the truth: numbers, plots, a page."),
    "generate": Verb(_generate, "Write muon bundles of a trained model for primaries."),
    "export": Verb(_export, "Write a trained generator as torch.export and ONNX files."),
}
