"""Configuration of a run, with the workload that the columns of its files show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import iglob
from itertools import chain
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.files.local import SUFFIXES
from common.text import shown
from services.config.root import Config, load_config
from workloads import registry

_MOST_LOOKED_AT = 100
"""Maximum directory entries, or matches of a pattern, in the search for a file."""


def load_run_config(
    stored: Path | Mapping[str, Any], *, toml: Path | None, assignments: Sequence[str], flags: Mapping[str, Any]
) -> Config:
    """Resolved configuration of a new or existing run, with its workload. Raises BadInputError.

    A workload that is not set is detected from the columns of the inputs' first local Parquet file; without such a
    file it is the default one. Files that `icestream convert` imports are refused.
    """
    config = load_config(stored, toml=toml, assignments=assignments, flags=flags)
    if not all(config.source.extra.values()):
        flags = {**flags, "source.extra": _with_types(config)}
        config = load_config(stored, toml=toml, assignments=assignments, flags=flags)
    if "workload" in config.model_fields_set or len(registry.names()) == 1:
        _refuse_other_files(config)
        return config
    named, everyone = config.source.columns.keys(), registry.every_workload()
    of_columns = (one.name for one in everyone if named <= {source.name for source in one.schema.source_columns})
    found = (next(of_columns, None) if named else None) or workload_of_files(config.input)
    if found is None:
        _refuse_foreign(config.input)
    if found is None or found == config.workload:
        return config
    return load_config(stored, toml=toml, assignments=assignments, flags={**flags, "workload": found})


def config_without_run(toml: Path | None, assignments: Sequence[str], inputs: Sequence[str]) -> Config:
    """Settings for files without a run directory. Raises BadInputError."""
    return load_run_config({}, toml=toml, assignments=assignments, flags={"input": tuple(inputs)})


def _refuse_other_files(config: Config) -> None:
    """Raise BadInputError if the files have the columns of another workload, and not those of the configured one."""
    found = workload_of_files(config.input)
    if found is None or found == config.workload:
        return
    path = next(path for text in config.input for path in _local(text))
    own = {source.path[0] for source in config.stored_workload().source_columns}
    if own <= _columns(path):
        return
    models = ", ".join(registry.workload(found).models)
    raise BadInputError(
        f"{shown(str(path))} has the columns of the workload {found}, but this run is of the workload {config.workload}"
        f" (model {config.trainer.model}): use a model of {found} ({models}), or other files"
    )


def _with_types(config: Config) -> dict[str, str]:
    """`source.extra` with the types that the inputs' first local Parquet file gives. Raises BadInputError."""
    path = next((path for text in config.input for path in _local(text)), None)
    found: dict[str, str] = {}
    if path is not None and _columns(path):
        from common.files.parquet.columns import extra_types

        found = extra_types(path)
    for name, kind in config.source.extra.items():
        if not kind and not found:
            raise BadInputError(
                f"source.extra names {name!r} without a type, and the inputs have no local Parquet file that tells it:"
                f' write {{{name} = "float64"}}'
            )
        if not kind and name not in found:
            raise BadInputError(f"source.extra: {shown(str(path))} has no column {name!r}; it has {', '.join(found)}")
    return {name: kind or found[name] for name, kind in config.source.extra.items()}


def workload_of_files(inputs: Sequence[str]) -> str | None:
    """First workload with all its source columns in the inputs' first local Parquet file, or None."""
    path = next((path for text in inputs for path in _local(text)), None)
    columns = _columns(path) if path is not None else frozenset()
    for workload in registry.every_workload():
        if columns and columns >= {source.path[0] for source in workload.schema.source_columns}:
            return workload.name
    return None


def _refuse_foreign(inputs: Sequence[str]) -> None:
    """Raise BadInputError if the first input with a local Parquet file is of a layout that has an importer."""
    places = (Path(text) if Path(text).is_dir() else path for text in inputs for path in _local(text))
    place = next(places, None)
    if place is None:
        return
    for layout, lazy in registry.importers().items():
        if registry.loaded(lazy).recognises(place):
            raise BadInputError(
                f"{shown(str(place))} is of the layout {layout}: first import it with `icestream convert FOLDER OUT`"
            )


def _local(text: str) -> Iterator[Path]:
    """Some local Parquet files of an input. Errors of an input are reported when it is listed."""
    text = text.removeprefix("file://").replace("{range}", "*")
    if "://" in text or text.startswith("@"):
        return
    matches = map(Path, iglob(text, recursive=True))  # noqa: PTH207  a pattern that may be absolute
    files = chain.from_iterable(map(_sorted_files, matches))
    for number, path in enumerate(files):
        if path.suffix in SUFFIXES and path.is_file():
            yield path
        if number == _MOST_LOOKED_AT:
            return


def _sorted_files(path: Path) -> Iterator[Path]:
    """A file, or the files below a folder in the order of their names, which no file system changes."""
    if not path.is_dir():
        yield path
        return
    for entry in sorted(path.iterdir()):
        yield from _sorted_files(entry)


def _columns(path: Path) -> frozenset[str]:
    """Names of a Parquet file's top-level columns; empty if it is not Parquet, or damaged."""
    from common.files.parquet.footer import DamagedFooter, parse_footer

    try:
        groups = parse_footer(path).row_groups
    except (DamagedFooter, OSError):
        return frozenset()
    return frozenset(column.path[0] for group in groups[:1] for column in group.columns)
