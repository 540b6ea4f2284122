"""Settings of icestream for an old command line. Pure."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from common.config import StreamConfig
from common.errors import BadInputError
from common.pelican.tokens.scopes import federation_of
from common.plan import SlotCapacity
from common.redact import shown
from workloads.muons.columns import MUONS
from workloads.muons.migrate.command_line import OldCommand
from workloads.muons.migrate.flags import EARLIER, FLAGS, WGAN
from workloads.muons.migrate.old_flag import OldFlag
from workloads.muons.models.wgan.config import WganConfig

TOML_FILE = "migrated.toml"
_MIB = 2**20
_RANGE = re.compile(r"/\d{7}-\d{7}/")
_BY_NAME = {flag.name: flag for flag in (*FLAGS, *EARLIER)}


@dataclass
class Moved:
    """Counterpart of an old command line."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Values by key."""
    origins: dict[str, str] = field(default_factory=dict)
    """Old flag of each key, or the reason for it."""
    left_out: list[str] = field(default_factory=list)
    """Lines about flags without a counterpart."""
    notes: list[str] = field(default_factory=list)
    """Lines about settings that differ, or train badly."""
    inputs: tuple[str, ...] = ()
    run_dir: str = "runs/migrated"
    done: str = ""
    """List of files that were processed."""
    token: bool = False
    """True if a token is to be got first."""
    inspect: int | None = None
    """Number of events for `icestream inspect`, which takes the place of the run."""


def moved(old: OldCommand) -> Moved:
    """Settings, options and notes for an old command. Raises BadInputError for values that can't be used."""
    new = Moved()
    for name, value in old.given.items():
        _take(new, _BY_NAME[name], value, old.given)
    if old.trainers > 1:
        new.settings["local.trainers"] = old.trainers
        new.origins["local.trainers"] = "processes of torchrun"
    processes = old.trainers * old.nodes
    if processes > 1 and (batch := new.settings.get("stream.batch_events")):  # the script's batch is that of a process
        new.settings["stream.batch_events"] = batch * processes
        new.origins["stream.batch_events"] = f"{new.origins['stream.batch_events']} {batch} × {processes} processes"
    if old.nodes > 1:
        new.notes.append(
            f"--nnodes {old.nodes}: the command below uses one node; on {old.nodes} of them set stream.shards and start"
            " `icestream node` on each (docs/how-to/several-nodes.md)"
        )
    _complete_stream(new)
    wgan = _validated(WganConfig, WGAN, new.settings)
    new.notes += [f"{WGAN}: {warning}" for warning in wgan.warnings()]
    return new


def _take(new: Moved, flag: OldFlag, value: Any, given: Mapping[str, Any]) -> None:
    """Take over one flag."""
    match flag.name:
        case "--infiles":
            new.inputs = value
            if any(_RANGE.search(text) for text in value):
                new.notes.append(
                    "all ranges in one run: {range} for the range in each -i, and --ranges FIRST:LAST:STEP (`icestream"
                    " run --help`)"
                )
        case "--tb-run-name":
            new.run_dir = f"runs/{value}"
        case "--checkpoint":
            new.done = value
        case "--auto-token":
            new.token = any(federation_of(text) for text in given.get("--infiles", ()))
            if not new.token:  # `icestream token` would end the script with an error
                new.left_out.append("--auto-token: no input is in a federation")
        case "--print-file-contents":
            new.inspect = given.get("--print-max-events", 5)
        case "--print-max-events":
            pass
        case "--device" if value not in flag.values:
            new.left_out.append(f"--device {shown(value)}: no counterpart; auto, cpu and cuda are")
        case "--max-muons-per-batch" if given.get("--preflight-muon-threshold"):
            new.left_out.append(f"{flag.name}: --preflight-muon-threshold wins over it, as before")
        case "--num-workers" if value > 0:
            _set(new, flag, "local.decoders", "auto")
            _set(new, flag, "local.max_decoders", value)
        case "--lr":
            keys = flag.keys[:2] if given.get("--optimizer") == "sgd" else flag.keys
            for key in keys:
                _set(new, flag, key, value)
        case "--momentum" if given.get("--optimizer", "adam") != "sgd":
            new.left_out.append("--momentum: SGD's alone, and the optimizer is Adam")
        case _ if not flag.keys:
            where = f"{flag.option.replace('`', '')}: " if flag.option else ""
            new.left_out.append(f"{flag.name}: {where}{flag.note.replace('`', '')}")
        case _:
            if flag.name == "--drop-empty-events":
                new.notes.append(f"{flag.name}: {flag.note}")
            value = flag.values.get(value, value)
            for key in flag.keys if value is not None else ():
                _set(new, flag, key, value)


def _set(new: Moved, flag: OldFlag, key: str, value: Any) -> None:
    new.settings[key] = value
    new.origins[key] = flag.name


def _complete_stream(new: Moved) -> None:
    """Settings that follow from those of the stream: microbatches hold the largest event, slots hold a batch."""
    settings = new.settings
    per_event = settings.get("stream.max_particles_per_event", 0)
    if per_event > settings.get("stream.max_particles", StreamConfig().max_particles):
        settings["stream.max_particles"] = per_event
        new.origins["stream.max_particles"] = "a microbatch must hold the largest event"
    events = settings.get("stream.batch_events", 0)
    if events > StreamConfig().unit_events:
        settings["stream.unit_events"] = events
        new.origins["stream.unit_events"] = "a unit holds a batch"
    # Sizes are computed as for a slot that is large enough.
    stream = _validated(StreamConfig, "stream", settings | {"stream.slot_mib": 2.0**20})
    needed = SlotCapacity(MUONS, stream).bytes_needed(max(events, 1), stream.max_particles)
    slot_mib = math.ceil(needed / _MIB)
    if slot_mib > StreamConfig().slot_mib:
        settings["stream.slot_mib"] = slot_mib
        new.origins["stream.slot_mib"] = f"a slot holds a batch; {stream.slots} slots in all"


def _validated(config: type[Any], section: str, settings: Mapping[str, Any]) -> Any:
    """Section of the configuration. Raises BadInputError."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        if key.startswith(f"{section}."):
            *branches, leaf = key.removeprefix(f"{section}.").split(".")
            branch = tree
            for name in branches:
                branch = branch.setdefault(name, {})
            branch[leaf] = value
    try:
        return config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([section, *(str(part) for part in first["loc"])])
        raise BadInputError(f"{key}, from the old flags: {shown(first['msg'])}") from None


def toml(new: Moved) -> list[str]:
    """Settings as TOML, each with its old flag as a comment."""
    sections: dict[str, list[str]] = {}
    for key, value in new.settings.items():
        section, _, leaf = key.rpartition(".")
        line = f"{leaf} = {json.dumps(value, ensure_ascii=False)}"
        sections.setdefault(section, []).append(f"{line}  # {new.origins[key]}")
    lines = sections.pop("", [])
    for section, content in sections.items():
        lines += [*([""] if lines else []), f"[{section}]", *content]
    return lines


def script(new: Moved) -> list[str]:
    """Lines for a shell: the TOML file, the commands, and as comments what has no counterpart, with the reason."""
    inputs = " ".join(f"-i {shlex.quote(text)}" for text in new.inputs)
    if new.inspect is not None:
        files = " ".join(map(shlex.quote, new.inputs))
        return [f"icestream inspect {files} --events {new.inspect}"]
    lines = [f"cat > {TOML_FILE} <<'END'", *toml(new), "END"] if new.settings else []
    config = f"-c {TOML_FILE}" if new.settings else ""
    if new.token:
        lines.append(_joined("icestream token", inputs, config))
    run_dir = f"--run-dir {shlex.quote(new.run_dir)}"
    done = f"--done {shlex.quote(new.done)}" if new.done else ""
    lines.append(_joined("icestream run", inputs, config, done, run_dir))
    for title, found in (("Not needed, or elsewhere", new.left_out), ("To be looked at", new.notes)):
        if found:
            lines += ["", f"# {title}:", *(f"#   {line}" for line in found)]
    return lines


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
