"""Context of a step, and state before the first one, made from the run's configuration."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from services.config.root import Config
from services.trainer.health.health import Health
from services.trainer.ranks.ranks import Ranks
from services.trainer.service import new_state, set_up_torch, step_context, training_of
from workloads.base.cpu_tuning import mkl_is_held_back
from workloads.base.native import library
from workloads.base.training import Training


def test_a_model_is_told_the_runs_inputs_seed_and_precision() -> None:
    config = Config.model_validate(
        {"input": ("data/a", "b.parquet"), "seed": 7, "trainer": {"precision": "bf16", "threads": 3}}
    )
    context = step_context(config, torch.device("cpu"), Ranks.alone())
    assert context.inputs == ("data/a", "b.parquet")
    assert (context.seed, context.bf16, context.threads) == (7, True, 3)


@pytest.mark.parametrize(
    ("precision", "device", "products"),
    [
        ("auto", "cuda", "high"),
        ("auto", "cpu", "medium" if mkl_is_held_back() else "highest"),  # float32 by oneDNN
        ("tf32", "cuda", "high"),
        ("float32", "cuda", "highest"),
        ("bf16", "cuda", "highest"),
    ],
)
def test_matrix_products_are_tf32_on_cuda_unless_configured(precision: str, device: str, products: str) -> None:
    assert Config().trainer.precision == "auto"
    threads = torch.get_num_threads()
    try:
        set_up_torch(Config.model_validate({"trainer": {"precision": precision}}), torch.device(device))
        assert torch.get_float32_matmul_precision() == products
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)


def test_a_deterministic_run_on_a_cpu_computes_in_the_same_way_as_any_other() -> None:
    threads = torch.get_num_threads()
    chosen = []
    try:
        for deterministic in (False, True):
            set_up_torch(Config.model_validate({"trainer": {"deterministic": deterministic}}), torch.device("cpu"))
            chosen.append((torch.get_float32_matmul_precision(), library.used() is not None))
            torch.set_float32_matmul_precision("highest")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)
    assert chosen[0] == chosen[1]


class Sameness:
    """Training of the muons' default model, with a limit of its own."""

    headline = "w_gap"
    shown = ("w_gap", "sameness")
    meaning_of_weights = ()
    alarms: ClassVar = {"sameness": 0.3}

    def __init__(self, training: Training) -> None:
        self.task, self.evaluator, self.warnings = training.task, training.evaluator, training.warnings


def test_a_models_limits_are_those_of_its_runs_health() -> None:
    config = Config.model_validate({"trainer": {"health": {"median_steps": 7}}, "stream": {"shards": 2}})
    context = step_context(config, torch.device("cpu"), Ranks.alone())
    state = new_state(config, Sameness(training_of(config)), context, "plan")
    assert state.watch.judge(1, {"sameness": 0.5}).health is Health.WARNING
    assert state.watch.config.median_steps == 7
    assert len(state.position.shards) == 2
    assert state.shown == ("w_gap", "sameness", "w_gap_ma_500")
