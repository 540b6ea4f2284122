"""Services for the verbs of workloads, which the command line and Python share, and Python's functions themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import BadInputError
from common.options import Paths, PathText, given_inputs, given_path
from common.own_code import is_own
from workloads import registry

if TYPE_CHECKING:
    from torch import Tensor

    from common.schema import EventSchema
    from workloads.base.checkpoint import TrainedRun
    from workloads.base.interface import FileEvents, FileSettings, Front, OrderedUnit
    from workloads.base.report.page import EvaluationReport


class FrontDoor:
    """The services of the command line, as workloads.base.interface.Front describes them."""

    def file_settings(
        self, inputs: Sequence[str], *, toml: Path | None, assignments: Sequence[str], config_json: str = ""
    ) -> FileSettings:
        """Return settings of files: see Front."""
        from icestream.reading import file_settings
        from services.config.root import load_config

        stored = json.loads(config_json or "{}")
        return file_settings(load_config(stored, toml=toml, assignments=assignments, flags={"input": tuple(inputs)}))

    def read_events(
        self, schema: EventSchema, settings: FileSettings, **sample: Any
    ) -> AbstractContextManager[FileEvents]:
        """Events of files: see Front."""
        from icestream.reading import sampled_events

        return sampled_events(schema, settings, **sample)

    def each_unit(self, schema: EventSchema, settings: FileSettings) -> AbstractContextManager[Iterator[OrderedUnit]]:
        """Units of all files in order: see Front."""
        from icestream.reading import units_in_order

        return units_in_order(schema, settings)


if TYPE_CHECKING:
    _FRONT: Front = FrontDoor()  # click passes it untyped


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
    from common.slow_progress import no_progress

    with python_words(), no_progress():
        folder = given_path(path, "path")
        write = registry.function(workload, "simulate")
        write(folder, events=events, files=files, seed=seed, force=force, **options)
        return folder


def load(run: PathText, *, device: str = "auto", model: str | None = None) -> Any:
    """Return the trained model of a run directory (its best checkpoint, else its newest) or of a checkpoint.

    What it can do depends on the workload, and is that of the commands: `.generate(primaries, seed=…)` of muons,
    `.predict(files)` of directions. ``device``: auto, cpu, cuda or cuda:N. ``model``: `package.module:NAME`, for a run
    of a model of your own: the result is what its `Training.load` returns, of icestream.ModuleTraining the trained
    module. Raises BadInputError.
    """
    from workloads.base.checkpoint import load_own, load_run
    from workloads.base.device import device_named

    def build(found: TrainedRun, task_state: dict[str, Any]) -> Any:
        if is_own(found.model):
            return load_own(found, task_state, where, model)
        return registry.function(found.workload, "load")(FrontDoor(), found, task_state, where)

    with python_words():
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
    """Return metrics of a trained model with their errors and floors, on events of the files ``inputs``.

    ``output``: folder for the page, `report.json` and the plots; None: nothing is written. ``verbose``: show progress
    on standard error. ``options``: those of `icestream evaluate` for the workload, such as ``simulated``.
    Raises BadInputError.
    """
    from common.slow_progress import no_progress, note
    from workloads.base.checkpoint import load_run

    with python_words(), nullcontext() if verbose else no_progress():
        checkpoint = given_path(run, "run")
        workload = load_run(checkpoint, lambda found, _: found.workload)
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


def geometry(path: PathText) -> Tensor:
    """Return the positions of the sensors of events of directions, (S, 3) float32 in m: row i is sensor i.

    ``path``: the folder of the events, one of its files, or its `sensor_geometry.csv`. Raises BadInputError.
    """
    import torch

    from workloads.direction.geometry import GEOMETRY_FILE, read_geometry

    place = given_path(path, "path")
    if place.name != GEOMETRY_FILE:
        place = (place.parent if place.is_file() else place) / GEOMETRY_FILE
    return torch.from_numpy(read_geometry(place).position_S3)


# ------------------------------------------------------------------ errors in Python's words

_ARGUMENTS = {
    "-i/--input": "inputs",
    "-i": "inputs",
    "-c": "config",
    "--input": "inputs",
    "--fresh": "another run_dir",
    "--ranges": "fetcher.ranges",
    "--done": "fetcher.done",
    "--strict": "fetcher.strict",
    "--token-file": "token.file",
}
"""Arguments that have another name than their option."""
_SET = r"--set (?:'[\w.]+=[^']*'|[\w.]+=[^\s;,)]+)"
_PAIR = re.compile(r"--set (?:'(?P<quoted>[^']*)'|(?P<plain>[^\s;,)]+))")
_PARTS = re.compile(
    r"`[^`]*`"  # a command line, which is one in Python, too
    rf"|(?P<settings>{_SET}(?: {_SET})*)"
    r"|(?<![\w/-])(?P<option>-i/--input|-i|-c|--[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w-])"
)


@contextmanager
def python_words() -> Iterator[None]:
    """Raise a BadInputError of the block with the text of in_python()."""
    try:
        yield
    except BadInputError as error:
        error.args = (in_python(str(error)),)
        raise


def in_python(text: str) -> str:
    """Return the text with Python's arguments in the place of options; commands between backticks stay."""
    return _PARTS.sub(_in_python, text)


def _in_python(match: re.Match[str]) -> str:
    if option := match["option"]:
        return _ARGUMENTS.get(option, option.removeprefix("--").replace("-", "_"))
    if not match["settings"]:
        return match[0]
    pairs = [pair["quoted"] or pair["plain"] for pair in _PAIR.finditer(match["settings"])]
    return f"settings={dict(map(_setting, pairs))!r}"


def _setting(pair: str) -> tuple[str, object]:
    key, _, value = pair.partition("=")
    with suppress(ValueError):
        return key, json.loads(value)
    return key, value
