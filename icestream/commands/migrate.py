"""`icestream migrate`: old commands of cr_muons and iceaggr, read as argparse would, as commands and settings.

Scripts and their flags stand in old_flags.csv, a line each: the 77 of cr_muons' `training/train.py` (commit bdff8ed) in
its own order, those of earlier versions, those of other scripts, the keys of iceaggr's configurations (`iceaggr`), and
the `scripts`. The tables of the pages on moving over are made from it. `takes`: switch, int, float, text, texts or
range. `keys`: of icestream, which get its value. `option`: what takes its place, as Markdown; of scripts that train
nothing the option, with {} for the value. `values`: old=new, if they differ; without a new one there is nothing to
set. `note`: the difference; without keys and option the reason.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_args

import click
from pydantic import TypeAdapter, ValidationError

from common.config import StreamConfig
from common.errors import BadInputError
from common.paths import open_file
from common.pelican.token_claims import federation_of
from common.plan import SlotCapacity
from common.text import sanitised, shown
from services.config.root import Config
from services.config.settings import ValidationConfig
from workloads import registry

NUMBERS: Mapping[str, type] = {"int": int, "float": float, "text": str}
_BOOLS = {"": None, "true": True, "false": False}


@dataclass(frozen=True)
class OldFlag:
    """Flag, argument or key with its counterpart: a line of old_flags.csv."""

    script: str
    name: str
    takes: str
    keys: tuple[str, ...]
    option: str
    values: Mapping[Any, Any]
    alias_of: str
    note: str


def _read() -> Iterator[OldFlag]:
    with Path(__file__).with_name("old_flags.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            pairs = (pair.split("=") for pair in line.pop("values").split())
            of_old = NUMBERS.get(line["takes"], "True".__eq__)
            values = {of_old(old): _BOOLS.get(new, new) for old, new in pairs}
            yield OldFlag(keys=tuple(line.pop("keys").split()), values=values, **line)


ALL_FLAGS = tuple(_read())


def flags_of(script: str) -> dict[str, OldFlag]:
    """Flags of a script by name."""
    return {flag.name: flag for flag in ALL_FLAGS if flag.script == script}


TRAIN, ICEAGGR = "train.py", "iceaggr"
FLAGS = tuple(flags_of(TRAIN).values())
"""The 77 flags of cr_muons' `train.py`, then those of its earlier versions, and of the notes on it."""
SCRIPTS = flags_of("scripts")


class _Parser(argparse.ArgumentParser):
    """A script's parser, as far as it decides what is a flag and what its value."""

    def __init__(self, flags: Iterable[OldFlag]) -> None:
        super().__init__(add_help=False)
        for flag in flags:
            names = ("-i", flag.name) if flag.name == "--infiles" else (flag.name,)
            place: dict[str, Any] = {"default": argparse.SUPPRESS}
            if flag.name.startswith("-"):
                place["dest"] = flag.alias_of or flag.name
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


def parse(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Values of the flags of a script, without aliases.

    Raises BadInputError that names all unknown flags with the nearest known ones.
    """
    flags = flags_of(script)
    found, unknown = _Parser(flags.values()).parse_known_args(arguments)
    if unknown:
        # Not their values, which may be secret.
        names = [text.partition("=")[0] for text in unknown if text.startswith("-")] or unknown[:1]
        near = {name: difflib.get_close_matches(name, flags, n=1, cutoff=0.6) for name in names}
        told = [f"{shown(name)} (the nearest is {known[0]})" if known else shown(name) for name, known in near.items()]
        raise BadInputError(f"no flag of {script}: {'; '.join(told)}")
    if not vars(found):
        raise BadInputError(
            f"no flag of {script} given: put the old command behind --: `icestream migrate -- python train.py -i …`"
        )
    return vars(found)


def _number_of(option: str, launcher: Sequence[str]) -> int:
    """Return the number given by this option of torchrun, else 1. Raises BadInputError for what is none."""
    found = re.search(rf"(?<!\S)(--{option})[= ]?(\S*)", " ".join(launcher))
    if found and not (found[2].isdecimal() and int(found[2])):
        raise BadInputError(f"{found[1]} {shown(found[2])}: expected the number that the old runs had")
    return int(found[2]) if found else 1


TOML_FILE = "migrated.toml"
WGAN = "trainer.wgan"
OSDF_URL = "pelican://osg-htc.org"
LEAST_VALIDATION_STEPS = 100
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
    convert: str = ""
    """Folder of Kaggle's files, which are to be converted first."""
    instead: str = ""
    """Command that takes the place of the run."""

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set a value; ``origin``: its old flag, or the reason for it."""
        self.settings[key] = value
        self.origins[key] = origin


def moved(old: Sequence[str]) -> Moved:
    """Commands, settings and notes for an old command. Raises BadInputError for values that can't be used."""
    launcher, path, arguments = _parts(old)
    name = path.name
    if name.endswith(".sh"):
        return _of_launcher(path)
    if name.endswith((".yaml", ".yml")):
        return _of_iceaggr(path, {})
    if name in SCRIPTS and name not in (TRAIN, "train_distributed.py"):
        flags, script = flags_of(name), SCRIPTS[name]
        if not flags:
            raise BadInputError(f"{name}: {script.note} ({script.option or 'no counterpart'})")
        given = parse(name, arguments)
        if name != "train_flat.py":
            return _of_other_script(script, flags, given)
        path = Path(given.pop("--config", "configs/train_flat.yaml"))
        return _of_iceaggr(path, {flags[flag].keys[0]: flags[flag].values.get(v, v) for flag, v in given.items()})
    return _of_training(parse(TRAIN, arguments), launcher)


def _parts(words: Sequence[str]) -> tuple[Sequence[str], Path, Sequence[str]]:
    """Words before the script, the script (`train.py` if there is none), and its flags."""
    words = [text for text in words if text.strip()]  # a line's end with a blank behind the backslash
    place = next((i for i, text in enumerate(words) if text.endswith((".py", ".sh", ".yaml", ".yml"))), -1)
    return words[: max(place, 0)], Path(words[place] if place >= 0 else TRAIN), words[place + 1 :]


def _of_training(given: Mapping[str, Any], launcher: Sequence[str]) -> Moved:
    """Counterpart of cr_muons' `train.py`."""
    new, flags = Moved(), flags_of(TRAIN)
    trainers = _number_of("nproc[-_]per[-_]node", launcher)
    nodes = _number_of("nnodes", launcher)
    for name, value in given.items():
        _take(new, flags[name], value, given)
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
    _complete_stream(new, "muons")
    _section(Config, "", new.settings)
    wgan = _section(registry.workload("muons").models["wgan"].config, WGAN, new.settings)
    first = f"its first {wgan.likelihood_steps:,} steps train the likelihood model, the others generator and critic"
    new.notes += [f"{WGAN}: {note}" for note in (first, *wgan.warnings())]
    return new


def _of_other_script(script: OldFlag, flags: Mapping[str, OldFlag], given: dict[str, Any]) -> Moved:
    """Counterpart of a script that trains nothing: one command."""
    new, words = Moved(), [script.option.strip("`").replace("RUN", "runs/migrated")]
    if given.get("--counts-mode") != "constant" and given.pop("--count-constant", None) is not None:
        new.left_out.append("--count-constant: only with --counts-mode constant, as before")
    for name, value in given.items():
        if name in ("--source-path", "--target-path"):
            value = f"{given.get('--federation', OSDF_URL).rstrip('/')}/{value.lstrip('/')}"
        value = flags[name].values.get(value, value)
        if flags[name].option and value is not None:
            words.append(flags[name].option.format(shlex.quote(str(value))))
        if flags[name].note:
            new.left_out.append(f"{name}: {flags[name].note.replace('`', '')}")
    new.instead = " ".join(words)
    return new


# ------------------------------------------------------------------ cr_muons' launcher

_ASSIGNED = re.compile(r"^(\w+)=(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s#()]*))", re.MULTILINE)
_COMMAND = re.compile(r"^[ \t]*TRAIN_CMD=\((.*?)^[ \t]*\)", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_MOST_BYTES = 1 << 20


def _of_launcher(path: Path) -> Moved:
    """Counterpart of a `train_with_restart.sh`: one run of all its ranges."""
    text = _text(path)
    values = {match[1]: match[2] or match[3] or match[4] or "" for match in reversed(list(_ASSIGNED.finditer(text)))}
    values["RANGE_DIR"] = "{range}"
    command = _COMMAND.search(text)
    if command is None:
        raise BadInputError(f"{path}: it has no TRAIN_CMD=( … ): put the command itself behind `icestream migrate --`")

    def value(match: re.Match[str]) -> str:
        if (name := match[1] or match[2]) not in values:
            raise BadInputError(f"{path}: no value of ${name}, which TRAIN_CMD uses: write it there")
        return values[name]

    line = re.sub(r"\\[ \t]*$", "", command[1], flags=re.MULTILINE).replace("${RANGE_LOW}-${RANGE_HIGH}", "$RANGE_DIR")
    try:
        words = [_VARIABLE.sub(value, word) for word in shlex.split(line, comments=True)]
    except ValueError as error:
        raise BadInputError(f"{path}: TRAIN_CMD can't be read ({error})") from None
    launcher, _, arguments = _parts(words)
    new = _of_training(parse(TRAIN, arguments), launcher)
    if any("{range}" in text for text in new.inputs):
        bounds = ("RANGE_START", "RANGE_END", "RANGE_STEP")
        new.set("fetcher.ranges", ":".join(values.get(name, "") for name in bounds), ", ".join(bounds))
        _section(Config, "", new.settings)
    new.left_out.append("MAX_RETRIES, pauses: a process that dies is started again, and a run resumes")
    if values.get("RANGES_TO_PROCESS", "0") != "0":
        new.notes.append("RANGES_TO_PROCESS: this run is of all ranges; stop it at any time, it resumes")
    return new


def _text(path: Path) -> str:
    """Content of a script or configuration. Raises BadInputError."""
    try:
        with open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadInputError(f"larger than {_MOST_BYTES:,} bytes")
        return content.decode()
    except (OSError, UnicodeDecodeError, BadInputError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{path}: can't be read ({reason})") from None


# ------------------------------------------------------------------ iceaggr

EVENTS_A_FILE, NUM_FILES = 200_000, 660
"""Events of a file, and files, of Kaggle's training set."""
_MOST_VALIDATED, _MOST_BETWEEN_CHECKPOINTS = 50_000, 1000
TRANSFORMER = "trainer.transformer"
_SIZES = (("d_model", "embed_dim"), ("num_layers", "event_num_layers"))
"""Width and layers of the flat model, and of the hierarchical one before it."""
_TYPES = {"int": int, "float": float, "text": str, "switch": bool, "range": tuple[int, int], "texts": list[str]}


def _of_iceaggr(path: Path, overrides: dict[str, Any]) -> Moved:
    """Counterpart of a configuration of iceaggr. ``overrides``: values by key, of flags."""
    new, known = Moved(), flags_of(ICEAGGR)
    tree = {name: section for name, section in _yaml(path).items() if isinstance(section, dict)}
    given = {f"{name}.{key}": value for name, section in tree.items() for key, value in section.items()} | overrides
    typed: dict[str, Any] = {}
    for key, value in given.items():
        if key in known and value is not None:  # YAML makes a text of 1e-4
            try:
                typed[key] = TypeAdapter(_TYPES[known[key].takes]).validate_python(value)
            except ValidationError as error:
                raise BadInputError(f"{path}: {key}: {error.errors()[0]['msg']}") from None
    if not typed.keys() & {"training.epochs", "training.batch_size", "training.lr"}:
        raise BadInputError(f"{path}: no configuration of iceaggr: it has no training.epochs, batch_size or lr")
    unknown = (key for key in given if key not in known and not key.startswith("model."))
    new.left_out += [f"{shown(key)}: no counterpart is known" for key in unknown]
    _network(new, path, tree.get("model", {}))
    for key, value in typed.items():
        flag = known[key]
        if not flag.keys:
            new.left_out.append(f"{key}: {(flag.note or flag.option).replace('`', '')}")
        elif (settable := flag.values.get(value, value)) is not None:
            for name in flag.keys:
                new.set(name, settable, key)
    _files(new, typed)
    new.set("stream.slot_mib", 32.0, "as configs/direction-transformer.toml")
    new.run_dir = f"runs/{sanitised(typed.get('wandb.name', path.stem))}"
    new.convert = str(Path(typed.get("data.geometry_path", "kaggle/sensor_geometry.csv")).parent)
    if "local.max_decoders" in new.settings:
        new.set("local.decoders", "auto", "data.num_workers")
    _complete_stream(new, "direction")
    _section(Config, "", new.settings)
    return new


def _yaml(path: Path) -> dict[str, Any]:
    """Sections of a YAML file. Raises BadInputError."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise BadInputError(f"{path}: reading YAML needs PyYAML: pip install pyyaml") from None
    try:
        tree = yaml.safe_load(_text(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInputError(f"{path}: not YAML ({shown(' '.join(str(error).split()), 300)})") from None
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise BadInputError(f"{path}: expected sections such as training: and data:")
    return tree


def _network(new: Moved, path: Path, model: Mapping[str, Any]) -> None:
    """Set the model and the nearest of its sizes."""
    width, layers = (model.get(name, model.get(old)) for name, old in _SIZES)
    if not isinstance(width, int) or not isinstance(layers, int) or not (0 < width < 10**5 and 0 < layers < 1000):
        raise BadInputError(f"{path}: model: expected d_model and num_layers, whole numbers")
    sizes = get_args(registry.workload("direction").models["flat"].config.model_fields["size"].annotation)
    size = min(sizes, key=lambda one: abs(math.log(float(one[:-1]) * 1e6 / (12 * layers * width**2))))
    new.set("trainer.model", "transformer" if "embed_dim" in model else "flat", "model")
    new.set(f"{TRANSFORMER}.size", size, f"model: the nearest to {layers} layers of width {width}")
    new.notes.append("the network is not the same: docs/how-to/from-iceaggr.md")


def _files(new: Moved, typed: Mapping[str, Any]) -> None:
    """Set inputs by ranges of files, and what iceaggr counts in epochs, in steps."""
    first, last = typed.get("data.train_batches", (1, NUM_FILES))
    most = typed.get("data.max_events", math.inf)
    last = min(last, first + math.ceil(min(most, 1e12) / EVENTS_A_FILE) - 1)
    new.inputs = (_range(first, last),)
    for key in ("input", "trainer.validation.input"):
        new.settings.pop(key, None)
    events = min(most, (last - first + 1) * EVENTS_A_FILE)
    if "data.val_batches" in typed:
        new.set("trainer.validation.input", [_range(*typed["data.val_batches"])], "data.val_batches")
    elif validated := typed.get("data.val_events"):
        new.set("stream.held_out", min(round(validated / events, 4), 0.1), "data.val_events, as no files are named")
    if "data.val_events" in typed:
        new.set("trainer.validation.events", min(typed["data.val_events"], _MOST_VALIDATED), "data.val_events")
    steps = max(1, round(events / new.settings.get("stream.batch_events", StreamConfig().batch_events)))
    if "epochs" in new.settings:
        total = new.settings["epochs"] * steps
        new.set(f"{TRANSFORMER}.schedule_steps", total, f"training.epochs, {steps} steps each")
        if most < (last - first + 1) * EVENTS_A_FILE:
            new.set("trainer.max_steps", total, f"data.max_events {most}; the files are read whole")
        if (warm := new.settings.get(f"{TRANSFORMER}.warmup_steps", 0)) >= total:
            new.notes.append(f"the warm-up of {warm} steps is as long as the run of {total}: lower warmup_steps")
    if new.settings.get("trainer.precision") == "bf16":
        new.notes.append("bf16 is slow on a CPU: leave trainer.precision out there")
    if often := typed.get("data.val_per_epoch"):
        new.set("trainer.validation.every", max(1, steps // max(often, 1)), f"data.val_per_epoch {often}")
    if saved := typed.get("checkpoint.save_every"):
        new.set(
            "trainer.checkpoint_every", min(saved * steps, _MOST_BETWEEN_CHECKPOINTS), "checkpoint.save_every, in steps"
        )


def _range(first: int, last: int) -> str:
    return f"ev/batch_{{{first}..{last}}}.parquet"


# ------------------------------------------------------------------ settings


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
            files = " ".join(map(shlex.quote, given.get("--infiles", ())))
            new.instead = f"icestream inspect {files} --events {given.get('--print-max-events', 5)}"
        case "--print-max-events":
            pass
        case "--device" if value not in flag.values:
            new.left_out.append(f"--device {shown(value)}: no counterpart; auto, cpu and cuda are")
        case "--max-muons-per-batch" if given.get("--preflight-muon-threshold"):
            new.left_out.append(f"{flag.name}: --preflight-muon-threshold wins over it, as before")
        case "--num-workers" if value > 0:
            new.set("local.decoders", "auto", flag.name)
            new.set("local.max_decoders", value, flag.name)
        case "--tb-hist-interval" if 0 < value < LEAST_VALIDATION_STEPS:
            new.set(flag.keys[0], LEAST_VALIDATION_STEPS, f"{flag.name} {value}")
            new.notes.append(f"{flag.name}: {flag.note} ({ValidationConfig().events:,} of them)")
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


def _complete_stream(new: Moved, workload: str) -> None:
    """Settings that follow from those of the stream: microbatches hold the largest event, slots hold a batch."""
    settings = new.settings
    per_event = settings.get("stream.max_particles_per_event", 0)
    if per_event > settings.get("stream.max_particles", StreamConfig().max_particles):
        new.set("stream.max_particles", per_event, "a microbatch must hold the largest event")
    events = settings.get("stream.batch_events", 0)
    if events > StreamConfig().unit_events:
        new.set("stream.unit_events", events, "a unit holds a batch")
    # Sizes are computed as for a slot that is large enough.
    stream = _section(StreamConfig, "stream", settings | {"stream.slot_mib": 2.0**20})
    schema = registry.workload(workload).schema
    needed = SlotCapacity(schema, stream).bytes_needed(max(events, 1), stream.max_particles)
    slot_mib = math.ceil(needed / _MIB)
    if slot_mib > settings.get("stream.slot_mib", StreamConfig().slot_mib):
        new.set("stream.slot_mib", slot_mib, f"a slot holds a batch; {stream.slots} slots in all")


def _section(config: type[Any], section: str, settings: Mapping[str, Any]) -> Any:
    """Section of the configuration; the whole one without a name. Raises BadInputError."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        if not section or key.startswith(f"{section}."):
            *branches, leaf = key.removeprefix(f"{section}.").split(".")
            branch = tree
            for name in branches:
                branch = branch.setdefault(name, {})
            branch[leaf] = value
    try:
        return config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(filter(None, [section, *(str(part) for part in first["loc"])]))
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
    if new.instead:
        return [new.instead, *(f"#   {line}" for line in new.left_out)]
    lines = [f"cat > {TOML_FILE} <<'END'", *toml(new), "END"] if new.settings else []
    config = f"-c {TOML_FILE}" if new.settings else ""
    if new.convert:
        lines.append(f"icestream convert {shlex.quote(new.convert)} ev &&")  # the folder of Kaggle's files
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
  icestream migrate train_with_restart.sh
  icestream migrate configs/train_flat.yaml
"""


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("old", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
def migrate(old: tuple[str, ...]) -> None:
    """Print the icestream command for an old command of cr_muons or iceaggr, and its settings as TOML.

    COMMAND: the old command with its flags (quote its globs), a launcher with TRAIN_CMD, or a configuration of iceaggr.
    The output can be pasted into a shell: it writes migrated.toml and starts the run. Flags that are not needed are
    named in comments, with the reason. Flags that were not given get icestream's defaults, not the old ones.
    """
    new = moved(old)
    if new.done and not Path(new.done).is_file():
        new.left_out.append(
            f"--checkpoint: {shown(new.done)} is not there; --done FILE leaves out the files that it names"
        )
        new.done = ""
    click.echo("\n".join(script(new)))
