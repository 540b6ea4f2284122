"""TensorBoard sink: one folder for a run, named by the time of its start and kept over restarts.

Scalars need no torch: its functions are imported where a histogram, an image or the settings are written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from common.atomic_file import Publishing
from common.tensorboard_names import sanitised
from services.trainer.telemetry.charts import charts
from services.trainer.telemetry.sinks import Setting
from workloads.base.evaluator import Histogram, Image

TENSORBOARD_FOLDER = "tensorboard"
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
        if settings:
            self._tell_settings(settings, results, step)
            self._write_layout(step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write all scalars in one record: one record per scalar took 40 times as long."""
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._add(summary, step)
        with_floor = {name for name in values if f"{name}_floor" in values}
        if with_floor - self._with_floor:
            self._with_floor |= with_floor
            self._write_layout(step)

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
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
        from torch.utils.tensorboard.summary import image

        for name, one in values.items():
            self._add(image(name, one, dataformats="HWC"), step)

    def go_back(self, step: int) -> None:
        self._writer.close()
        with self._publishing():
            self._writer = _open(self.folder, step + 1)
        if self._with_floor:
            self._write_layout(step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _tell_settings(self, settings: Mapping[str, Setting], results: Sequence[str], step: int) -> None:
        """Write the settings for the tab HPARAMS, and as a table under TEXT. After a restart too: they may change."""
        from torch.utils.tensorboard.summary import hparams, text

        for summary in hparams(dict(settings), dict.fromkeys(results, 0.0)):
            self._add(summary, step)
        rows = [f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in settings.items()]
        table = "\n".join(["| setting | value |", "| --- | --- |", *rows])
        self._add(text("configuration", table), step)

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
