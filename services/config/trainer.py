"""Settings of the trainer's loop; each model has its own branch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model, field_validator

from common.config import ConfigBranch
from common.errors import BadInputError
from common.own_code import is_own, section_name
from services.config.health import HealthConfig
from workloads import registry


class ValidationConfig(ConfigBranch):
    """Fixed block of events on which the generator is evaluated at intervals: docs/reference/tensorboard.md."""

    events: int = Field(8192, ge=0)
    """Events of the block. 0: no block, no panel."""
    every: int = Field(500, ge=1)
    """Steps between two evaluations. One with 8192 events takes about a second on a CPU."""
    input: tuple[str, ...] = ()
    """Local files, directories or globs from which the block is drawn: not among the run's inputs, unless
    `stream.held_out` chooses the events. Empty: held-out events of the run's inputs, or, if none are held out, the
    first events of the run, which are trained on as well."""


class WandbConfig(ConfigBranch):
    """Weights & Biases, beside TensorBoard; needs the extra `icestream[wandb]`. wandb itself manages its key
    (`wandb login`)."""

    mode: Literal["off", "offline", "online"] = "off"
    """Mode of wandb. `offline`: records in the run directory's `wandb/`, which `wandb sync` sends later."""
    project: str = Field("icestream", min_length=1)
    """Project at wandb."""
    entity: str = ""
    """User or team. Empty: wandb's default."""
    tags: tuple[str, ...] = ()
    """Tags of the run at wandb."""


NO_MODEL = "none"
"""Name that stands for no model: batches are only counted."""


class _Settings(ConfigBranch):
    """Settings read by services/trainer."""

    model: str = registry.workload(registry.DEFAULT).default_model
    """Model to train: ``wgan`` (docs/explanation/model.md) or ``likelihood`` (docs/explanation/likelihood.md).
    ``none``: events are only counted, which measures the rate of the pipeline alone (docs/explanation/performance.md).
    ``package.module:NAME``: a model of your own (docs/how-to/custom-model.md). A checkpoint fits only its own model."""
    own: dict[str, Any] = Field({})
    """Settings of a model of your own, such as ``trainer.own.learning_rate``: that model checks them when it starts."""
    start_from: str = ""
    """Checkpoint or run directory of another run, whose weights and standardisation are the start. Optimisers, learning
    rates and the data start afresh. Once the run has a checkpoint of its own, it continues from that."""
    device: str = "auto"
    """Device: `auto` (CUDA where there is a device, else CPU), `cpu`, `cuda` or `cuda:N`."""
    threads: int = Field(1, ge=0)
    """CPU threads of the training step, each of which processes a part of a batch. 0: one for each core that the
    process may use."""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """Precision of matrix products. `auto`: `tf32` on CUDA, `float32` on the CPU; `tf32`: CUDA's tensor cores with 10
    bits of mantissa; `bf16`: weights and rows between layers are rounded to bfloat16, and computed with in that; the
    weights that are trained and saved, sums, scores and losses are float32 (docs/how-to/gpu.md)."""
    max_steps: int = Field(0, ge=0)
    """Number of optimiser steps in all, restarts included, after which training stops. 0: at the end of the last
    epoch."""
    checkpoint_every: int = Field(200, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(3, ge=1)
    """Number of newest checkpoints kept; the best one, `best.pt`, stays beside them."""
    log_every: int = Field(10, ge=1)
    """Steps between scalars on TensorBoard; besides checkpoints and the panel, the host waits for the device, and
    the health of training is judged, only then."""
    prefetch_units: int = Field(2, ge=1)
    """Units requested ahead of the one in use."""
    ranks_timeout_s: float = Field(1800.0, gt=0)
    """Time that data-parallel trainers wait for each other before they give up: at the start, and at each step.
    Longer than `transport.connect_timeout_s`, the time that one of them may wait for its fetcher."""
    profile_steps: int = Field(0, ge=0)
    """Number of steps to profile after the first few: a table in the log, and a trace in `profile/`. 0: none."""
    replay_batches: int = Field(0, ge=0)
    """Most batches of a session, evenly spread over it, that stay on the device and are replayed for `replay_s` after
    the last checkpoint: the summary then shows the part of this ceiling that the pipeline reached. Batches differ: 32
    or more give a steady figure. 0: no replay."""
    replay_s: float = Field(5.0, gt=0)
    """Duration of the replay; each batch at least three times."""
    audit: bool = False
    """Write `audit.jsonl`: one line for every microbatch trained, in order, with a digest of its bytes. Each of several
    trainers records its own share: `audit-rank1.jsonl`, …"""
    deterministic: bool = False
    """Only algorithms that give the same bits every time on a device; slower on a GPU (docs/how-to/diagnose.md)."""
    health: HealthConfig = HealthConfig()
    validation: ValidationConfig = ValidationConfig()
    wandb: WandbConfig = WandbConfig()

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError("auto, cpu, cuda or cuda:N")
        return device

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, model: str) -> str:
        if not is_known_model(model):
            raise ValueError(f"one of {', '.join(model_names())}, or package.module:NAME, a model of your own")
        return model

    @property
    def of_model(self) -> ConfigBranch | Mapping[str, Any]:
        """Section of the trained model; that of a model of the user's own is not checked."""
        section = getattr(self, section_name(self.model))
        assert isinstance(section, ConfigBranch | Mapping)
        return section


COMMON_SECTIONS = frozenset(
    name for name, field in _Settings.model_fields.items() if isinstance(field.default, ConfigBranch | dict)
)
"""Sections of `trainer` that are no model's."""


def model_names() -> list[str]:
    """Values of `trainer.model`: the models of every workload, and that for none."""
    return [*(name for workload in registry.every_workload() for name in workload.models), NO_MODEL]


def is_known_model(model: str) -> bool:
    """True for a value of `trainer.model`: a name of model_names(), or a model of the user's own."""
    return is_own(model) or model in model_names()


def removed_model(model: str) -> str:
    """Remedy for a run of a model that this version does not have."""
    return (
        f"this version of icestream has no model {model!r} ({', '.join(model_names())}): resume with the version that"
        " wrote it, or start over with --fresh and another --model"
    )


def model_sections() -> dict[str, tuple[type[ConfigBranch], ConfigBranch]]:
    """One section for each model of each workload, by the model's name, which no other may have."""
    sections: dict[str, tuple[type[ConfigBranch], ConfigBranch]] = {}
    for workload in registry.every_workload():
        for name, model in workload.models.items():
            if name in sections or name in _Settings.model_fields or name == NO_MODEL:
                raise BadInputError(
                    f"workload {workload.name}: trainer.{name} has another meaning already: give its model another name"
                )
            sections[name] = (model.config, model.config())
    return sections


if TYPE_CHECKING:
    TrainerConfig = _Settings
else:
    TrainerConfig = create_model(
        "TrainerConfig",
        __base__=_Settings,
        __doc__=_Settings.__doc__,
        **model_sections(),
    )
    """Settings of the trainer, with a section for each model of each workload."""
