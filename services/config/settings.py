"""Settings of the services, one class for each: fetcher, decoder, trainer, outputs, and the processes of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, create_model, field_validator

from common.config import ConfigBranch
from common.errors import BadInputError
from common.files.local import numbered
from common.messages import MAX_BAD_FILES
from common.own_code import is_own
from common.process import MAX_TRAINERS
from workloads import registry
from workloads.registry import NO_MODEL, section_name

_MAX_RANGES = 100_000


class FetcherConfig(ConfigBranch):
    """Settings read by services/fetcher."""

    ranges: str = ""
    """Ranges `FIRST:LAST:STEP` that are listed and trained one after the other. `0:99000:1000` replaces `{range}` in
    each input by `0000000-0000999` to `0099000-0099999`. Empty: the inputs as they are."""
    done: Path | None = None
    """List of files that an earlier training has processed, which are left out: JSON with their names under
    `processed_files` (docs/how-to/migrate.md). Read when a range is listed, and part of the plan."""
    cache_dir: Path | None = None
    """Directory for staged remote files, in a folder for each run: a disk of the node (docs/how-to/batch-systems.md).
    Default: `cache/` in the run directory. Local files are used in place."""
    disk_budget_gib: float = Field(20.0, gt=0)
    """Most disk space of staged remote files. Those behind the checkpoint are kept for the next epoch if they fit."""
    blocks_ahead: int = Field(2, ge=1)
    """Blocks staged beyond the one being delivered: more for a slow source (docs/how-to/federation.md)."""
    transfers: int = Field(8, ge=1)
    """Most files fetched, or inspected, at a time: more where each of a source's answers takes long."""
    max_bad_files: int | float = 10
    """Failure budget: the run stops once more files are bad. A whole number counts files; one below 1 is a fraction
    of the inventory. Never more than 100,000: a trainer lists all of them when it attaches."""
    strict: bool = False
    """Stop at the first bad file, row group or unit."""

    metrics_port: int = Field(0, ge=0, lt=65536)
    """Port for Prometheus metrics of the run. 0: none."""
    metrics_host: str = "127.0.0.1"
    """Address of this machine on which that port is open, without encryption or a password; 0.0.0.0: on all."""

    _sharing: int = PrivateAttr(1)

    def of_shard(self, on_machine: int) -> Self:
        """Return the settings of one of the shards that share this machine's disk and transfers."""
        share = {
            "disk_budget_gib": self.disk_budget_gib / on_machine,
            "transfers": max(1, self.transfers // on_machine),
        }
        of_shard = self.model_copy(update=share)
        of_shard._sharing = on_machine
        return of_shard

    @property
    def disk_budget(self) -> str:
        """The setting and its value, for errors about it."""
        text = f"fetcher.disk_budget_gib = {self.disk_budget_gib * self._sharing:g}"
        if self._sharing == 1:
            return text
        return f"{text}, of which each of the {self._sharing} shards here has {self.disk_budget_gib:.3g},"

    @field_validator("ranges")
    @classmethod
    def _range_names(cls, value: str) -> str:
        if value:
            range_names(value)
        return value

    @field_validator("max_bad_files")
    @classmethod
    def _count_or_fraction(cls, value: float) -> float:
        if value < 0 or (value >= 1 and value != int(value)):
            raise ValueError("a count (0, 1, 2, …) or a fraction below 1")
        return value

    def bad_files_allowed(self, num_files: int) -> int:
        """Return the number of files in an inventory that may be bad before the run stops."""
        if self.strict:
            return 0
        allowed = int(self.max_bad_files * num_files if 0 < self.max_bad_files < 1 else self.max_bad_files)
        return min(allowed, MAX_BAD_FILES)


def range_names(text: str) -> list[str]:
    """Return the names of the ranges `FIRST:LAST:STEP`, LAST included. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,7}):([0-9]{1,7}):([0-9]{1,7})", text)
    if match is None:
        raise ValueError("FIRST:LAST:STEP, for example 0:99000:1000 for 0000000-0000999 to 0099000-0099999")
    first, last, step = map(int, match.groups())
    if step < 1 or last < first:
        raise ValueError("FIRST:LAST:STEP with a STEP above 0, and LAST not below FIRST")
    starts = range(first, last + 1, step)
    if len(starts) > _MAX_RANGES:
        raise ValueError(f"at most {_MAX_RANGES:,} ranges, not {len(starts):,}")
    return [f"{start:07d}-{start + step - 1:07d}" for start in starts]


PLACEHOLDER = "{range}"


@dataclass(frozen=True)
class InputRange:
    """Range: its name, and the inputs that are listed for it."""

    name: str
    inputs: tuple[str, ...]
    done: Path | None = None
    """List of files that are left out."""


def range_key(one: InputRange) -> str:
    """Return the text that names the inputs of a range: the same for two ranges with the same inventory."""
    done = [] if one.done is None else [{"done": str(one.done)}]  # with another list, the inventory is another one
    return json.dumps([*one.inputs, *done])


def make_ranges(inputs: Sequence[str], ranges: str, done: Path | None = None) -> list[InputRange]:
    """Return the ranges of a run: one for each step of `FIRST:LAST:STEP`; without it one range with the inputs as
    they are.

    `0:2000:1000` gives `0000000-0000999`, `0001000-0001999` and `0002000-0002999` for `{range}`.
    Raises BadInputError if inputs and ranges don't fit together.
    """
    if not ranges:
        for text in inputs:
            if PLACEHOLDER in text:
                raise BadInputError(f"{text}: {PLACEHOLDER} needs --ranges FIRST:LAST:STEP, for example 0:99000:1000")
        return [InputRange("", tuple(inputs), done)]
    for text in inputs:
        if PLACEHOLDER not in text:
            raise BadInputError(
                f"{text}: with --ranges each input is a template with {PLACEHOLDER} in it, for example"
                f" pelican://osg-htc.org/icecube/…/{PLACEHOLDER}/*.parquet"
            )
    return [
        InputRange(name, tuple(text.replace(PLACEHOLDER, name) for text in inputs), done)
        for name in range_names(ranges)
    ]


class DecoderConfig(ConfigBranch):
    """Settings read by services/decoder. They never change a unit's bytes."""

    threads: int = Field(1, ge=1)
    """Threads of one decoder, of Arrow and of BLAS (unless OMP_NUM_THREADS or a similar variable is set). With 1,
    N decoders use N cores; who gives a decoder more cores than one sets it."""


_MAX_DECODERS = 1024
"""Limit against typing errors: each decoder is a process of 100 MB."""


class OutputsConfig(ConfigBranch):
    """Copies of a run's outputs, made by services/outputs (docs/how-to/copy-outputs.md)."""

    destination: str = ""
    """Destination of the copies of checkpoints and TensorBoard files: a directory, or a pelican:// URL. Empty: none."""
    every_s: float = Field(60.0, gt=0)
    """Pause between two checks for changed files. Raise it where the destination is slow or counts its requests."""

    @field_validator("destination")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        if "://" in value and not value.startswith(("pelican://", "osdf://")):
            raise ValueError("a directory, or a pelican:// URL")
        return value


class LocalConfig(ConfigBranch):
    """Processes of `icestream run`, started by services/supervisor."""

    decoders: int | Literal["auto"] = 2
    """Number of decoder processes. `auto`: one at first, more while units wait for them; idle ones leave."""
    max_decoders: int = Field(0, ge=0)
    """Most decoders for `auto`, and never more than `stream.slots`. 0: the usable cores minus one, divided by
    decoder.threads. Set it on a machine that others use, too."""
    trainers: int = Field(1, ge=1, le=MAX_TRAINERS)
    """Number of data-parallel trainer processes, each on its own GPU (or all on the CPU). They share the
    batches, which don't depend on their number."""
    restart_min_s: float = Field(5.0, ge=0)
    """Pause before a process that died is restarted; it doubles with each death in a row, up to five minutes. Raise it
    to look at what is left of a process that died."""

    @field_validator("decoders", mode="before")
    @classmethod
    def _number_or_auto(cls, value: object) -> object:
        text = str(value).strip()
        if text == "auto":
            return text
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MAX_DECODERS:
            raise ValueError(f"a number from 1 to {_MAX_DECODERS}, or auto")
        return int(text)

    @property
    def decoders_at_start(self) -> int:
        """Number of decoders started before the load is known."""
        return 1 if self.decoders == "auto" else self.decoders


Inputs = Annotated[tuple[str, ...], AfterValidator(numbered)]
"""Files, directories, globs or URLs; `{1..650}` stands for as many of them."""


class ValidationConfig(ConfigBranch):
    """Fixed block of events on which the generator is evaluated at intervals: docs/reference/status.md."""

    events: int = Field(8192, ge=0)
    """Events of the block. 0: no block, no panel."""
    every: int = Field(500, ge=1)
    """Steps between two evaluations. One with 8192 events takes about a second on a CPU."""
    input: Inputs = ()
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


class _Settings(ConfigBranch):
    """Settings read by services/trainer."""

    model: str = registry.workload(registry.DEFAULT).default_model
    """Model to train: ``wgan`` (docs/explanation/models.md) or ``likelihood`` (docs/explanation/models.md).
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
    bits of mantissa; `bf16`: networks compute in bfloat16 by torch's autocast; weights, scores and losses are float32
    (docs/how-to/gpu.md)."""
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
    profile_steps: int = Field(0, ge=0)
    """Number of steps to profile after the first few: a table in the log, and a trace in `profile/`. 0: none."""
    audit: bool = False
    """Write `audit.jsonl`: one line for every microbatch trained, in order, with a digest of its bytes. Each of several
    trainers records its own share: `audit-rank1.jsonl`, …"""
    deterministic: bool = False
    """Only algorithms that give the same bits every time on a device; slower on a GPU (docs/how-to/diagnose.md)."""
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
        if self.model == NO_MODEL:
            return {}
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
    """Sections of the models of each workload, by the name of a model, which no other may have."""
    sections: dict[str, tuple[type[ConfigBranch], ConfigBranch]] = {}
    for workload in registry.every_workload():
        for name, model in workload.models.items():
            if name in sections or name in _Settings.model_fields or name == NO_MODEL:
                raise BadInputError(
                    f"workload {workload.name}: trainer.{name} has another meaning already: give its model another name"
                )
            if not model.section:
                sections[name] = (model.config, model.config())
    return sections


if TYPE_CHECKING:
    TrainerConfig = _Settings
else:
    TrainerConfig = create_model("TrainerConfig", __base__=_Settings, __doc__=_Settings.__doc__, **model_sections())
    """Settings of the trainer, with a section for each model of each workload."""
