"""Settings of a stream, from the arguments of `icestream.stream`, and the state of a stream as it is saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import ValidationError

from common.errors import BadInputError
from common.plan_hash import plan_hash
from common.python_paths import Paths, given_inputs, given_path
from common.redact import without_secrets
from common.run_dir import CONFIG_FILE
from icestream.commands.run_checks import check_before_start
from icestream.reading.workload import load_run_config
from services.config.leaves import leaves
from services.config.root import Config
from services.config.trainer import NO_MODEL
from services.trainer.stream.position import StreamPosition

FORMAT = 1
_OF_OTHERS = ("trainer.", "outputs.", "local.trainers")
_OF_STREAMS = ("trainer.prefetch_units",)
_NO_FOLDER = "/nonexistent/temporary"
"""Stands for the temporary folder that is made with the first batch."""
_OF_THE_PLAN = ("seed", "workload", "stream", "source")
"""Settings that the order and the content of the stream depend on."""


def stream_config(
    inputs: Paths | None,
    *,
    run_dir: Path | None,
    config: str | PathLike[str] | None,
    settings: Mapping[str, object],
    flags: Mapping[str, object],
) -> Config:
    """Configuration of a stream. Raises BadInputError.

    ``run_dir``: folder whose stored settings are the defaults. ``settings`` and ``flags``: values by dotted key, None
    for one that is not given.
    """
    for key in settings:
        if key == "epochs":
            raise BadInputError("settings has epochs: a stream has no end, and each loop over it ends with an epoch")
        if key.startswith(_OF_OTHERS) and key not in _OF_STREAMS:
            raise BadInputError(f"settings has {key}, which has no effect here: your own loop is the trainer")
    given_flags = {key: value for key, value in flags.items() if value is not None}
    if inputs is not None:
        given_flags["input"] = given_inputs(inputs, "inputs")
        if not given_flags["input"]:
            raise BadInputError(
                "inputs has no path in it (a generator gives its paths once, and a glob may match none): name files,"
                " directories, globs or URLs"
            )
    if twice := sorted(settings.keys() & given_flags):
        raise BadInputError(f"settings has {', '.join(twice)}, which is an argument of its own, too: give it once")
    given = {
        **settings,
        **given_flags,
        "epochs": 0,
        "trainer.model": NO_MODEL,
    }
    stored: Path | dict[str, Any] = run_dir if run_dir is not None and run_dir.is_dir() else {}
    if isinstance(stored, Path):
        _refuse_training_run(stored)
    toml = given_path(config, "config") if config is not None else None
    found = load_run_config(stored, toml=toml, assignments=(), flags=given)
    if found.stream.shards > 1:
        raise BadInputError(f"stream.shards = {found.stream.shards}: a stream in Python has one; leave it out")
    if not found.input:
        raise BadInputError("no input given: name files, directories, globs or URLs")
    is_new = run_dir is None or not (run_dir / CONFIG_FILE).exists()
    check_before_start(run_dir or Path(_NO_FOLDER), found, lists_inputs=is_new)
    return found


def _refuse_training_run(run_dir: Path) -> None:
    try:
        model = json.loads((run_dir / CONFIG_FILE).read_text())["trainer"]["model"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if model != NO_MODEL:
        raise BadInputError(f"{run_dir} is the run directory of a training ({model}): name another folder as run_dir")


HANDED_OUT = "handed_out"
"""Key of the state after all batches that were handed out, in one after an earlier batch."""


class StreamState(NamedTuple):
    """Place in a stream: all that is needed to continue there."""

    position: StreamPosition
    epoch: int
    """Number of the epoch to continue in."""

    def saved(self, config: Config) -> dict[str, Any]:
        """The state as numbers and texts."""
        of_plan = json.loads(config.own_json())
        return {
            "format": FORMAT,
            "plan_hash": hash_of(config),
            "epoch": self.epoch,
            "position": self.position.model_dump_json(),
            "settings": without_secrets(json.dumps({name: of_plan[name] for name in _OF_THE_PLAN})),
        }

    @classmethod
    def read(cls, state: Mapping[str, Any], config: Config) -> Self:
        """State from what saved() returned. Raises BadInputError if it is of another stream, or of another version."""
        try:
            if state["format"] != FORMAT:
                raise BadInputError(f"the state of the stream has format {state['format']}; expected {FORMAT}")
            if state["plan_hash"] != hash_of(config):
                raise BadInputError(_difference(json.loads(state["settings"]), json.loads(config.own_json())))
            read = cls(StreamPosition.model_validate_json(state["position"]), int(state["epoch"]))
            if read.epoch < 0:
                raise ValueError
            return read
        except (KeyError, TypeError, ValueError, AttributeError, ValidationError):
            raise BadInputError("not the state of a stream: expected what stream.state_dict() returned") from None


def hash_of(config: Config) -> str:
    """Plan hash of a stream."""
    return plan_hash(config.stored_workload(), config.stream, config.seed)


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    old, new = dict(leaves(before)), dict(leaves({name: now[name] for name in _OF_THE_PLAN}))
    changed = [f"{key} was {old[key]}, now {new[key]}" for key in new if key in old and old[key] != new[key]]
    return (
        f"the state is of another stream ({'; '.join(changed) or 'of another version of icestream'}): use the same"
        " settings to continue it"
    )
