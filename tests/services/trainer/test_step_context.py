"""Context of a step, made from the run's configuration."""

from __future__ import annotations

import torch

from services.config.root import Config
from services.trainer.ranks.ranks import Ranks
from services.trainer.service import step_context


def test_a_model_is_told_the_runs_inputs_seed_and_precision() -> None:
    config = Config.model_validate(
        {"input": ("data/a", "b.parquet"), "seed": 7, "trainer": {"precision": "bf16", "threads": 3}}
    )
    context = step_context(config, torch.device("cpu"), Ranks.alone())
    assert context.inputs == ("data/a", "b.parquet")
    assert (context.seed, context.bf16, context.threads) == (7, True, 3)
