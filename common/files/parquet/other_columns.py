"""Parquet files that call the workload's columns otherwise: the setting `source.columns` that would read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from common.files.other_fields import MADE_IDS
from common.files.parquet.columns import is_list, type_problem
from common.schema import EventSchema, SourceColumn

_UNITS = frozenset({"gev", "tev", "rad", "deg", "m", "ns", "s", "id"})
_RUN_WORDS = frozenset({"run", "file"})
_EVENT_WORDS = frozenset({"event", "evt", "shower", "id"})
_ABBREVIATION = 3
"""Fewest letters of a word's beginning that stand for it."""


def columns_hint(schema: pa.Schema, workload: EventSchema) -> str:
    """Settings for the file's missing columns and lists of structs, to follow an error message; empty without any."""
    missing = [one for one in workload.source_columns if one.path[0] not in schema.names and not workload.may_lack(one)]
    structs = {one: _structs_fields(schema, one, workload) for one in workload.source_columns}
    missing += [one for one, fields in structs.items() if fields]
    if not missing:
        return ""
    used = {one.path[0] for one in workload.source_columns}
    free = [field for field in schema if field.name not in used]
    settings: list[str] = []
    guessed = False
    for source in missing:
        names = structs[source] or _proposed(source, free, workload)
        if source.into == workload.identity and ids_settings(schema, workload) == MADE_IDS:
            settings += MADE_IDS
            continue
        guessed = guessed or names is not None
        value = "NAME" if names is None else json.dumps(names) if isinstance(names, list) else names
        setting = f"source.columns.{source.key}={value}"
        settings.append(f"--set '{setting}'" if isinstance(names, list) else f"--set {setting}")
    condition = "If these are its columns, in the workload's units, give" if guessed else "If it has other names, give"
    return f". {condition} {' '.join(dict.fromkeys(settings))}"


def ids_settings(schema: pa.Schema, workload: EventSchema) -> list[str]:
    """Settings for missing columns of ids: the file's columns that seem to be these if all do, else MADE_IDS."""
    used = {one.path[0] for one in workload.source_columns}
    ids = [one for one in workload.source_columns if one.into == workload.identity]
    missing = [one for one in ids if one.path[0] not in schema.names]
    free = [field for field in schema if field.name not in used]
    names = [_proposed(one, free, workload) for one in missing]
    if None in names:
        return MADE_IDS
    return [f"--set source.columns.{one.key}={name}" for one, name in zip(missing, names, strict=True)]


def _proposed(source: SourceColumn, free: Sequence[pa.Field], workload: EventSchema) -> str | list[str] | None:
    """Column of the file, or one for each number of a list; None: none is likely."""
    fitting: list[str] = [one.name for one in free if _fits(one, replace(source, name=one.name), workload)]
    wanted = {*_words(source.path[-1]), *_words_of_id(source, workload)}
    common = {name: len(wanted & set(_words(name))) for name in fitting}
    most = max(common.values(), default=0)
    likely = [name for name in fitting if common[name] == most]
    shortest = min((len(_words(name)) for name in likely), default=0)
    likely = [name for name in likely if len(_words(name)) == shortest]  # event_id, and not event_type
    if len(likely) == 1 and (most or source.is_list):
        return likely[0]
    plain = [one for one in free if "." not in one.name]
    return _of_each_number(source, plain, workload) if source.is_list else None


def _structs_fields(schema: pa.Schema, source: SourceColumn, workload: EventSchema) -> list[str] | None:
    """Name of each number of a list, if the file has structs in the place of the lists; None: it has no such ones."""
    if not source.is_list or schema.get_field_index(source.name) < 0:
        return None
    kind = schema.field(source.name).type
    struct = kind.value_type if is_list(kind) else kind
    if not pa.types.is_struct(struct):
        return None
    fields = [pa.field(f"{source.name}.{one.name}", kind) for one in struct if "." not in one.name]
    return _of_each_number(source, fields, workload)


def _of_each_number(source: SourceColumn, columns: Sequence[pa.Field], workload: EventSchema) -> list[str] | None:
    """Column for each number of a list; None if one has none, or two have the same."""
    numbers = [
        one.name
        for one in columns
        if type_problem(
            one.type, SourceColumn(one.name, source.into, 0, known_as=source.key, part_of_list=True), workload
        )
        is None
    ]
    fields = workload.column(source.into).fields
    found = [next(iter(_alike(field, numbers)), None) for field in fields]
    names = [name for name in found if name is not None]
    return names if len(set(names)) == len(fields) else None


def _words_of_id(source: SourceColumn, workload: EventSchema) -> frozenset[str]:
    """Usual words in the names of columns of ids: the last one is that of the event."""
    if source.into != workload.identity:
        return frozenset()
    is_last = source.field == len(workload.column(source.into).fields) - 1
    return _EVENT_WORDS if is_last else _RUN_WORDS


def _fits(field: pa.Field, source: SourceColumn, workload: EventSchema) -> bool:
    return "." not in field.name and type_problem(field.type, source, workload) is None


def _alike(field: str, names: Sequence[str]) -> Iterator[str]:
    """Names with a word of ``field``, or its beginning; then those with its first letter as a word."""
    for is_alike in (_is_same, _is_first_letter):
        for wanted in _words(field):
            yield from (name for name in names if any(is_alike(word, wanted) for word in _words(name)))


def _is_same(word: str, wanted: str) -> bool:
    short, long = sorted((word, wanted), key=len)
    return word == wanted or (len(short) >= _ABBREVIATION and long.startswith(short))


def _is_first_letter(word: str, wanted: str) -> bool:
    return word == wanted[0]


def _words(name: str) -> list[str]:
    """Words of a name in lower case, without units."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    return [word for word in words if word not in _UNITS] or words
