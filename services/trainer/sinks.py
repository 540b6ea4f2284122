"""Sinks of metrics besides the status file: TensorBoard, and Weights & Biases with the same names."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from common.atomic_file import Publishing
from common.errors import BadInputError, missing_extra
from common.paths import require_private
from common.text import TENSORBOARD_FOLDER, sanitised, without_secrets
from services.config.root import leaves
from services.config.settings import COMMON_SECTIONS, WandbConfig
from workloads.base.training import Histogram, Image

logger = logging.getLogger(__name__)

Setting = bool | int | float | str


Charts = dict[str, dict[str, list[str | list[str]]]]
"""Category -> title -> kind and names of the lines."""
_SPEED = {
    "events per second": ["trainer/events_per_s"],
    "share of time waiting for data": ["trainer/wait_fraction"],
    "memory of the trainer, MiB": ["memory/rss_mib", "memory/mean_allocated_mib", "memory/max_reserved_mib"],
    "health: 0 healthy, 1 warning, 2 critical": ["health/state"],
}


def charts(results: Sequence[str], with_floor: Sequence[str]) -> Charts:
    """Results with their means over 500 steps and on held-out events; values with their floors; speed and health."""
    training = {}
    for name in results:
        group, _, last = name.rpartition("/")
        training[name] = [name, f"{name}_ma_500", f"{group}/held_out_{last}"]
    found = {
        "training": training,
        "distance from real events, and its floor": {name: [name, f"{name}_floor"] for name in with_floor},
        "speed and health": _SPEED,
    }
    return {
        category: {title: ["Multiline", [f"^{name}$" for name in names]] for title, names in lines.items()}
        for category, lines in found.items()
        if lines
    }


_OF_TRAINING = ("epochs", "input", "seed", "source.", "stream.", "trainer.", "workload")
"""Prefixes of the keys that define data and training; the others concern location and speed."""


def hyperparameters(config_json: str) -> dict[str, Setting]:
    """Dotted key -> value, lists as JSON, every text without secrets; of the models, that which is trained."""
    tree = json.loads(config_json)
    trainer = tree["trainer"]
    kept = {*COMMON_SECTIONS, trainer["model"]}
    tree["trainer"] = {key: value for key, value in trainer.items() if key in kept or not isinstance(value, dict)}
    of_training = {key: value for key, value in leaves(tree) if key.startswith(_OF_TRAINING)}
    return {key: _shown(value) for key, value in of_training.items() if value is not None}


def _shown(value: Any) -> Setting:
    if isinstance(value, bool | int | float):
        return value
    return without_secrets(value if isinstance(value, str) else json.dumps(value))


_RUN = re.compile(r"(?:.*-)?(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)")


def run_folder(run_dir: Path, now: datetime | None = None) -> Path:
    """Folder `tensorboard/<name>-<YYYY-MM-DDTHH-MM-SS>` of the run in this directory, created at the run's start.

    The name is the directory's, the time in UTC. (Former versions left out the name.)
    """
    parent = run_dir / TENSORBOARD_FOLDER
    known = {started(path): path for path in parent.iterdir() if path.is_dir()} if parent.is_dir() else {}
    if newest := max(known, default=""):
        return known[newest]
    time_text = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H-%M-%S")
    folder = parent / f"{sanitised(run_dir.resolve().name)}-{time_text}"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def started(folder: Path) -> str:
    """Time in the name of a run's folder; empty if it is none."""
    found = _RUN.fullmatch(folder.name)
    return found[1] if found else ""


class TensorBoardSink:
    """Sink for TensorBoard. A thread of EventFileWriter writes the files."""

    def __init__(
        self,
        run_dir: Path,
        step: int,
        settings: Mapping[str, Setting] | None = None,
        results: Sequence[str] = (),
        publishing: Publishing = nullcontext,
    ) -> None:
        """Continues after ``step``: the run's records of later steps are hidden.

        ``publishing``: context in which a file is begun, of several nodes. It hides what former files have of later
        steps, also that of a newer attempt; what is added to a former file is hidden by those begun after it.

        ``results``: scalars shown beside the settings under HPARAMS, and first under CUSTOM SCALARS.
        """
        self._results = tuple(results)
        self._with_floor: set[str] = set()
        """Scalars of which a floor was written, too."""
        self._publishing = publishing
        with publishing():
            self.folder = run_folder(run_dir)
            self._is_new = not any(self.folder.iterdir())
            self._writer = _open(self.folder, None if self._is_new else step + 1)
        if settings:  # in the tab HPARAMS, and as a table under TEXT; after a restart, too: they may have changed
            from torch.utils.tensorboard.summary import hparams, text

            rows = [f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in settings.items()]
            table = text("configuration", "\n".join(["| setting | value |", "| --- | --- |", *rows]))
            for summary in (*hparams(dict(settings), dict.fromkeys(results, 0.0)), table):
                self._add(summary, step)
            self._write_layout(step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write all numbers in one record: one record per number took 40 times as long."""
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._add(summary, step)
        with_floor = {name for name in values if f"{name}_floor" in values}
        if with_floor - self._with_floor:
            self._with_floor |= with_floor
            self._write_layout(step)

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        """Write distributions by name."""
        from torch.utils.tensorboard.summary import histogram_raw

        for name, one in values.items():
            centres = (one.edges[1:] + one.edges[:-1]) / 2
            summary = histogram_raw(
                name,
                min=float(one.edges[0]),
                max=float(one.edges[-1]),
                num=float(one.counts.sum()),
                sum=float(one.counts @ centres),
                sum_squares=float(one.counts @ centres**2),
                bucket_limits=one.edges[1:].tolist(),
                bucket_counts=one.counts.tolist(),
            )
            self._add(summary, step)

    def images(self, values: Mapping[str, Image], step: int) -> None:
        """Write images by name."""
        from torch.utils.tensorboard.summary import image

        for name, one in values.items():
            self._add(image(name, one, dataformats="HWC"), step)

    def go_back(self, step: int) -> None:
        """Hide the values of steps after ``step``, from which training continues."""
        self._writer.close()
        with self._publishing():
            self._writer = _open(self.folder, step + 1)
        if self._with_floor:
            self._write_layout(step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write_layout(self, step: int) -> None:
        """Write the charts of CUSTOM SCALARS: results first, then each value with its floor. The newest counts."""
        from torch.utils.tensorboard.summary import custom_scalars

        self._add(custom_scalars(charts(self._results, sorted(self._with_floor))), step)

    def _add(self, summary: Summary, step: int) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _open(folder: Path, first_step: int | None) -> EventFileWriter:
    """New file of events; ``first_step``: records of this and later steps in former files are hidden."""
    writer = EventFileWriter(str(folder))
    if first_step is not None:
        now_s = time.time()
        writer.add_event(Event(wall_time=now_s, step=first_step, file_version="brain.Event:2"))
        writer.add_event(
            Event(wall_time=now_s, step=first_step, session_log=SessionLog(status=SessionLog.SessionStatus.START))
        )
    return writer


WANDB_FOLDER = "wandb"
_ID_FILE = "icestream-run-id"


class WandbSink:
    """Sink with one run at wandb over all restarts of a run directory; its x axis is ``step``.

    wandb's own step can only grow. So each record holds the training step as a number, and after a restart the steps
    behind the checkpoint exist twice.
    """

    def __init__(self, run_dir: Path, config: WandbConfig, name: str, settings: Mapping[str, Setting]) -> None:
        """Raises BadInputError if the extra is missing, if wandb refuses, or if others could choose its server."""
        try:
            import wandb  # an optional extra
        except ImportError:
            raise missing_extra(
                f"trainer.wandb.mode = {config.mode!r}", "wandb", "set trainer.wandb.mode = off"
            ) from None
        # Others must not change what wandb reads in the current folder, such as the server that gets the key.
        require_private(Path.cwd(), "wandb reads its settings in the current folder,")
        for folder in ("wandb", ".wandb"):
            with suppress(FileNotFoundError):
                require_private(Path.cwd() / folder / "settings", "wandb's settings,")
        self._wandb: Any = wandb
        self._run = self._start(run_dir, config, name, settings)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        made = {name: self._wandb.Histogram(np_histogram=(one.counts, one.edges)) for name, one in values.items()}
        self._run.log({**made, "step": step})

    def images(self, values: Mapping[str, Image], step: int) -> None:
        self._run.log({**{name: self._wandb.Image(one) for name, one in values.items()}, "step": step})

    def go_back(self, step: int) -> None:
        del step  # see the class

    def flush(self) -> None:
        """Nothing to do: a process of wandb's own writes the records."""

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()  # finish() returns before wandb's process has written the last records

    def _start(self, run_dir: Path, config: WandbConfig, name: str, settings: Mapping[str, Setting]) -> Any:
        # wandb would also upload details of the machine, the command line and the code: disabled for privacy.
        quiet = self._wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        arguments: dict[str, Any] = {
            "project": config.project,
            "name": name,
            "id": _run_id(run_dir),
            "resume": "allow",
            "dir": str(run_dir),
            "config": dict(settings),
            "settings": quiet,
        }
        errors = self._wandb.errors
        try:
            return self._wandb.init(mode=config.mode, **arguments)
        except (errors.UsageError, errors.AuthenticationError) as error:
            raise BadInputError(
                f"trainer.wandb: {_one_line(error)}; log in with `wandb login`, or set trainer.wandb.mode = offline"
            ) from None
        except errors.CommError as error:
            logger.warning(
                "wandb can't be reached (%s): this start is recorded offline; `wandb sync %s` sends it later",
                _one_line(error),
                run_dir / WANDB_FOLDER / "offline-run-*",
            )
            return self._wandb.init(mode="offline", **arguments)


def run_name(run_dir: Path, started: str) -> str:
    """Name of a run at wandb: its directory's, and the time of its start (UTC) as `YYYYMMDD_HHMMSS`.

    ``started``: in the name of its TensorBoard folder, `YYYY-MM-DDTHH-MM-SS`.
    """
    return f"{run_dir.resolve().name}-{started.replace('-', '').replace('T', '_')}"


def _run_id(run_dir: Path) -> str:
    path = run_dir / WANDB_FOLDER / _ID_FILE
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(8))
    return path.read_text()


def _one_line(error: Exception) -> str:
    return without_secrets(" ".join(str(error).split()))[:300]


Sink = TensorBoardSink | WandbSink
"""Receiver of metrics by step, which never falls, except after ``go_back``."""
