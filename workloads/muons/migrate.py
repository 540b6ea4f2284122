"""`icestream migrate`: an old command line of cr_muons, read as argparse would, and its settings, options and notes.

The 77 flags of its `training/train.py` (commit bdff8ed), in its own order, and those of earlier versions stand in
flags.csv, a line a flag, from which the table of docs/how-to/migrate.md is made, too: `takes`: switch, int, float, text
or texts. `keys`: of icestream, which get its value. `option`: what takes its place, as Markdown. `values`: old=new, if
they differ; without a new one there is nothing to set. `note`: the difference; without keys and option the reason.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import click
from pydantic import ValidationError

from common.config import StreamConfig
from common.errors import BadInputError
from common.pelican.token_claims import federation_of
from common.plan import SlotCapacity
from common.text import shown
from workloads.muons.columns import MUONS
from workloads.muons.models.config import WganConfig

NUMBERS: Mapping[str, type] = {"int": int, "float": float, "text": str}
_BOOLS = {"": None, "true": True, "false": False}


@dataclass(frozen=True)
class OldFlag:
    """Flag of cr_muons' `training/train.py` with its counterpart: a line of flags.csv."""

    name: str
    takes: str
    keys: tuple[str, ...]
    option: str
    values: Mapping[Any, Any]
    alias_of: str
    note: str

    @property
    def counterpart(self) -> str:
        """Counterpart as Markdown; empty: there is none."""
        return ", ".join([*([self.option] if self.option else []), *(f"`{key}`" for key in self.keys)])


def _read() -> tuple[OldFlag, ...]:
    flags = []
    with Path(__file__).with_name("flags.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            pairs = (pair.split("=") for pair in line.pop("values").split())
            of_old = NUMBERS.get(line["takes"], bool)
            values = {of_old(old): _BOOLS.get(new, new) for old, new in pairs}
            flags.append(OldFlag(keys=tuple(line.pop("keys").split()), values=values, **line))
    return tuple(flags)


FLAGS = _read()
"""The 77 flags of the script, then those of earlier versions, and of the notes on it."""
BY_NAME: Mapping[str, OldFlag] = {flag.name: flag for flag in FLAGS}


def rows() -> list[str]:
    """Return the table of all flags, as Markdown."""
    lines = ["| old flag | icestream | what is different, or why there is none |", "| --- | --- | --- |"]
    for flag in FLAGS:
        name = f"`{flag.name}`" if flag.name != "--infiles" else "`-i`, `--infiles`"
        if flag.alias_of:
            lines.append(f"| {name} | as `{flag.alias_of}` | |")
        else:
            note = f" {flag.note} " if flag.note else " "
            lines.append(f"| {name} | {flag.counterpart or 'not needed'} |{note}|")
    return lines


class _Parser(argparse.ArgumentParser):
    """The old script's parser, as far as it decides what is a flag and what its value."""

    def __init__(self) -> None:
        super().__init__(add_help=False)
        for flag in FLAGS:
            names = ("-i", flag.name) if flag.name == "--infiles" else (flag.name,)
            place: dict[str, Any] = {"dest": flag.alias_of or flag.name, "default": argparse.SUPPRESS}
            if flag.takes == "switch":
                self.add_argument(*names, **place, action="store_true")
            elif flag.takes == "texts":
                self.add_argument(*names, **place, nargs="+")
            else:
                choices = [*flag.values] if flag.takes == "text" and flag.values and flag.name != "--device" else None
                self.add_argument(*names, **place, type=NUMBERS[flag.takes], choices=choices)

    def error(self, message: str) -> NoReturn:
        """Raise BadInputError."""
        raise BadInputError(shown(message.removeprefix("argument ")))


def parse(arguments: Sequence[str]) -> tuple[dict[str, Any], int, int]:
    """Values of the flags behind the script's name, without aliases; processes on each node; nodes.

    Raises BadInputError that names all unknown flags with the nearest known ones.
    """
    arguments = [text for text in arguments if text.strip()]  # a line's end with a blank behind the backslash
    script = next((i for i, text in enumerate(arguments) if text.endswith(".py")), -1)
    launcher, flags = arguments[: max(script, 0)], arguments[script + 1 :]
    found, unknown = _Parser().parse_known_args(flags)
    if unknown:
        # Not their values, which may be secret.
        names = [text.partition("=")[0] for text in unknown if text.startswith("-")] or unknown[:1]
        near = {name: difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.6) for name in names}
        told = [f"{shown(name)} (the nearest is {known[0]})" if known else shown(name) for name, known in near.items()]
        raise BadInputError(f"no flag of the old script: {'; '.join(told)}")
    if not vars(found):
        raise BadInputError(
            "no flag given: put the old command behind --, as in `icestream migrate -- python train.py -i …`"
        )
    processes = _number_of(("--nproc-per-node", "--nproc_per_node"), launcher)
    return vars(found), processes, _number_of(("--nnodes",), launcher)


def _number_of(names: Sequence[str], launcher: Sequence[str]) -> int:
    """Return the number given by one of these options of torchrun, else 1. Raises BadInputError for what is none."""
    for first, second in pairwise([*launcher, ""]):
        name, equals, attached = first.partition("=")
        if name in names:
            value = attached if equals else second
            if not value.isdecimal() or not int(value):
                raise BadInputError(f"{name} {shown(value)}: expected the number that the old runs had")
            return int(value)
    return 1


TOML_FILE = "migrated.toml"
WGAN = "trainer.wgan"
_MIB = 2**20
_RANGE = re.compile(r"/\d{7}-\d{7}/")


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

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set a value; ``origin``: its old flag, or the reason for it."""
        self.settings[key] = value
        self.origins[key] = origin


def moved(arguments: Sequence[str]) -> Moved:
    """Settings, options and notes for an old command. Raises BadInputError for values that can't be used."""
    new = Moved()
    given, trainers, nodes = parse(arguments)
    for name, value in given.items():
        _take(new, BY_NAME[name], value, given)
    if trainers > 1:
        new.set("local.trainers", trainers, "processes of torchrun")
    processes = trainers * nodes
    if processes > 1 and (batch := new.settings.get("stream.batch_events")):  # the script's batch is that of a process
        origin = f"{new.origins['stream.batch_events']} {batch} × {processes} processes"
        new.set("stream.batch_events", batch * processes, origin)
    if nodes > 1:
        new.notes.append(
            f"--nnodes {nodes}: the command below uses one node; for {nodes} of them set stream.shards and start"
            " `torchrun … -m icestream run --shared …` on each (docs/how-to/several-gpus.md)"
        )
    _complete_stream(new)
    wgan = _validated(WganConfig, WGAN, new.settings)
    new.notes += [f"{WGAN}: {warning}" for warning in wgan.warnings()]
    return new


def _take(new: Moved, flag: OldFlag, value: Any, given: Mapping[str, Any]) -> None:
    """Take over one flag."""
    match flag.name:
        case "--infiles":
            new.inputs = tuple(value)
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
            new.set("local.decoders", "auto", flag.name)
            new.set("local.max_decoders", value, flag.name)
        case "--lr" if given.get("--optimizer") == "sgd":
            new.left_out.append("--lr: SGD's, which is no rate for Adam: the defaults are used")
        case _ if not flag.keys:
            where = f"{flag.option.replace('`', '')}: " if flag.option else ""
            new.left_out.append(f"{flag.name}: {where}{flag.note.replace('`', '')}")
        case _:
            if flag.name == "--drop-empty-events":
                new.notes.append(f"{flag.name}: {flag.note}")
            value = flag.values.get(value, value)
            for key in flag.keys if value is not None else ():
                new.set(key, value, flag.name)


def _complete_stream(new: Moved) -> None:
    """Settings that follow from those of the stream: microbatches hold the largest event, slots hold a batch."""
    settings = new.settings
    per_event = settings.get("stream.max_particles_per_event", 0)
    if per_event > settings.get("stream.max_particles", StreamConfig().max_particles):
        new.set("stream.max_particles", per_event, "a microbatch must hold the largest event")
    events = settings.get("stream.batch_events", 0)
    if events > StreamConfig().unit_events:
        new.set("stream.unit_events", events, "a unit holds a batch")
    # Sizes are computed as for a slot that is large enough.
    stream = _validated(StreamConfig, "stream", settings | {"stream.slot_mib": 2.0**20})
    needed = SlotCapacity(MUONS, stream).bytes_needed(max(events, 1), stream.max_particles)
    slot_mib = math.ceil(needed / _MIB)
    if slot_mib > StreamConfig().slot_mib:
        new.set("stream.slot_mib", slot_mib, f"a slot holds a batch; {stream.slots} slots in all")


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
        lines.append(" ".join(filter(None, ("icestream token", inputs, config))))
    run_dir = f"--run-dir {shlex.quote(new.run_dir)}"
    done = f"--done {shlex.quote(new.done)}" if new.done else ""
    lines.append(" ".join(filter(None, ("icestream run", inputs, config, done, run_dir))))
    for title, found in (("Not needed, or elsewhere", new.left_out), ("To be looked at", new.notes)):
        if found:
            lines += ["", f"# {title}:", *(f"#   {line}" for line in found)]
    return lines


EXAMPLES = """\b
Examples:
  icestream migrate -- python training/train.py -i 'data/*.parquet' --batch-size 8192 --lambda-gp 10
  icestream migrate -- torchrun --nproc-per-node 4 training/train.py --batch-size 8192 > migrated.sh
"""


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("old", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
def migrate(old: tuple[str, ...]) -> None:
    """Print the icestream command for an old command of cr_muons, and its settings as TOML.

    COMMAND: the old command with its flags; quote its globs. The output can be pasted into a shell: it writes
    migrated.toml and starts the run. Flags that are not needed are named in comments, with the reason. Flags that were
    not given get icestream's defaults, not the old ones.
    """
    new = moved(old)
    if new.done and not Path(new.done).is_file():
        new.left_out.append(
            f"--checkpoint: {shown(new.done)} is not there; --done FILE leaves out the files that it names"
        )
        new.done = ""
    click.echo("\n".join(script(new)))
