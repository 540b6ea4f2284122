"""Python functions for what the commands `simulate`, `generate`, `predict` and `evaluate` do, with the same code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import BadInputError
from common.own_code import is_own
from common.python_paths import Paths, PathText, given_inputs, given_path
from workloads import registry

if TYPE_CHECKING:
    from workloads.base.report.evaluation_report import EvaluationReport
    from workloads.base.trained_run import TrainedRun


def simulate(
    path: PathText,
    *,
    workload: str = registry.DEFAULT,
    events: int = 20_000,
    files: int = 8,
    seed: int = 0,
    force: bool = False,
    **options: Any,
) -> Path:
    """Write simulated events, a toy for first steps, to the folder ``path``, and return it.

    Same seed, same bytes. ``force``: replace a data set that was simulated there before. ``options``: those of
    `icestream simulate` for the workload, such as ``preset``. Raises BadInputError.
    """
    with _in_python():
        folder = given_path(path, "path")
        write = registry.function(workload, "simulate")
        write(folder, events=events, files=files, seed=seed, force=force, **options)
        return folder


def load(run: PathText, *, device: str = "auto", model: str | None = None) -> Any:
    """Trained model of a run directory (its best checkpoint, else its newest) or of a checkpoint.

    What it can do depends on the workload, and is that of the commands: `.generate(primaries, seed=…)` of muons,
    `.predict(files)` of directions. ``device``: auto, cpu, cuda or cuda:N. ``model``: `package.module:NAME`, for a run
    of a model of your own: the result is what its `Training.load` returns, of icestream.ModuleTraining the trained
    module. Raises BadInputError.
    """
    from icestream.front import FrontDoor
    from workloads.base.device import device_named
    from workloads.base.own_model import load_own
    from workloads.base.trained_run import load_run

    def build(found: TrainedRun, task_state: dict[str, Any]) -> Any:
        if is_own(found.model):
            return load_own(found, task_state, where, model)
        return registry.function(_workload_of(found), "load")(FrontDoor(), found, task_state, where)

    with _in_python():
        where = device_named(device)
        return load_run(given_path(run, "run"), build)


def evaluate(
    run: PathText,
    inputs: Paths = (),
    *,
    output: PathText | None = None,
    events: int = 40_000,
    seed: int = 0,
    device: str = "auto",
    verbose: bool = False,
    **options: Any,
) -> EvaluationReport:
    """Metrics of a trained model with their errors and floors, on events of the files ``inputs``.

    ``output``: folder for the page, `report.json` and the plots; None: nothing is written. ``verbose``: show progress
    on standard error. ``options``: those of `icestream evaluate` for the workload, such as ``simulated``.
    Raises BadInputError.
    """
    from common.slow_progress import no_progress, note
    from icestream.front import FrontDoor
    from workloads.base.trained_run import load_run

    with _in_python(), nullcontext() if verbose else no_progress():
        checkpoint = given_path(run, "run")
        workload = load_run(checkpoint, lambda found, _: _workload_of(found))
        report: EvaluationReport = registry.function(workload, "evaluate")(
            FrontDoor(),
            note,
            checkpoint=checkpoint,
            inputs=given_inputs(inputs, "inputs"),
            output=None if output is None else given_path(output, "output"),
            write=output is not None,
            events=events,
            seed=seed,
            device=device,
            **options,
        )
        return report


def _workload_of(run: TrainedRun) -> str:
    """Workload of a run; checkpoints of the first version do not name it, but their model does."""
    having = [one.name for one in registry.every_workload() if run.model in one.models]
    if not run.workload and not having:
        raise BadInputError(f"{run.path}: no workload has a model {run.model!r}")
    return run.workload or having[0]


_OPTION = re.compile(r"--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")


@contextmanager
def _in_python() -> Iterator[None]:
    """Context whose errors name the arguments of functions in place of the commands' options."""
    try:
        yield
    except BadInputError as error:
        text = _OPTION.sub(lambda option: option[1].replace("-", "_"), str(error))
        error.args = (text,)
        raise
