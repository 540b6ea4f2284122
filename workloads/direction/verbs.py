"""Commands of the direction workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.base.interface import Verb

if TYPE_CHECKING:
    import click


def _simulate() -> click.Command:
    from workloads.direction.simulator import simulate

    return simulate


def _seeds() -> click.Command:
    from workloads.direction.commands import seeds

    return seeds


def _evaluate() -> click.Command:
    from workloads.direction.commands import evaluate

    return evaluate


def _predict() -> click.Command:
    from workloads.direction.commands import predict

    return predict


VERBS = {
    "simulate": Verb(_simulate, "Write simulated events with known truth.", "Data"),
    "seeds": Verb(_seeds, "Add the classical fits, which the model `sets` starts from, to files.", "Data"),
    "evaluate": Verb(_evaluate, "Compare a trained model with the truth: numbers, plots, a page."),
    "predict": Verb(_predict, "Write the predicted directions of events, with their precision."),
}
