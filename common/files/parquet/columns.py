"""Source columns in a Parquet file: one description of their location, for its footer, its batches and its writer.

A column of one value an event is a number, or a list of numbers; of one value a particle it has one list around it.
Both may be fields of structs, and the list of particles may be around the struct or inside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import BadInputError
from common.schema import EventSchema, SourceColumn

_KINDS = {"b": "bool", "i": "integer", "u": "integer", "f": "float"}


def is_list(kind: pa.DataType) -> bool:
    """True for each of the three list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def schema_problem(schema: pa.Schema, workload: EventSchema) -> str | None:
    """Missing or wrong column of the file; None if all columns are usable."""
    for source in workload.source_columns:
        if source.path[0] not in schema.names:
            if workload.may_lack(source):
                continue
            return f"column {source.path[0]!r} is missing; the file has {', '.join(schema.names) or 'none'}"
        problem = type_problem(schema.field(source.path[0]).type, source, workload)
        if problem:
            return problem
    return None


def type_problem(kind: pa.DataType, source: SourceColumn, workload: EventSchema) -> str | None:
    """Return why a column of that type is not ``source``; None: it is."""
    around = int(workload.per(source) == "particle")
    expected = around + int(source.is_list)
    found, lists, names = kind, 0, list(source.path[1:])
    while True:
        if is_list(found):
            found, lists = found.value_type, lists + 1
        elif names and pa.types.is_struct(found) and lists <= around:
            index = found.get_field_index(names[0])
            if index < 0:
                there = ", ".join(found.field(i).name for i in range(found.num_fields))
                return f"column {source.name!r} is missing: the struct has {there}, and {names[0]!r} not or not once"
            found = found.field(index).type
            names.pop(0)
        else:
            break
    number = np.dtype(workload.column(source.into).dtype).kind
    if names or lists != expected or not _holds(found, number, source, workload):
        shape = kind if len(source.path) == 1 else f"{'list<' * lists}{found}{'>' * lists}"
        return f"column {source.name!r} has type {shape}; expected {_expected(number, expected)}"
    return None


def _holds(kind: pa.DataType, number: str, source: SourceColumn, workload: EventSchema) -> bool:
    if number == "b":
        return bool(pa.types.is_boolean(kind))
    if number == "f" and source.part_of_list and pa.types.is_integer(kind):
        return True  # a column of its own may hold whole numbers only, such as mass numbers
    if source.field is not None and workload.relative_field(source.into, source.field) and pa.types.is_integer(kind):
        return True  # absolute times
    return bool(pa.types.is_floating(kind) if number == "f" else pa.types.is_integer(kind))


def _expected(number: str, lists: int) -> str:
    name = _KINDS[number]
    return f"{'list<' * lists}{name}{'>' * lists}" if lists else f"{'an' if name[0] == 'i' else 'a'} {name}"


def read_names(schema: pa.Schema, leaves: Sequence[str], workload: EventSchema) -> dict[str, str]:
    """Leaf names by source column of the file, with which Arrow reads it; the schema must have no problem.

    ``leaves``: Parquet names of all leaf columns, in order. Raises BadInputError.
    """
    names: dict[str, str] = {}
    for source in workload.source_columns:
        top = source.path[0]
        if top not in schema.names:
            continue
        names[source.name] = top
        if len(source.path) > 1:
            of_column = [leaf for leaf in leaves if leaf.startswith(f"{top}.")]
            if len(of_column) != _num_leaves(schema.field(top).type):
                raise BadInputError(f"column {top!r} has parts that can't be distinguished, or of an unknown type")
            names[source.name] = of_column[_leaf_index(schema.field(top).type, source.path[1:])]
    return names


def _leaf_index(kind: pa.DataType, names: Sequence[str]) -> int:
    """Number of leaves of ``kind`` before the named one."""
    while is_list(kind):
        kind = kind.value_type
    if not names:
        return 0
    index = kind.get_field_index(names[0])
    before = sum(_num_leaves(kind.field(i).type) for i in range(index))
    return before + _leaf_index(kind.field(index).type, names[1:])


def _num_leaves(kind: pa.DataType) -> int:
    if is_list(kind) or pa.types.is_dictionary(kind):
        return _num_leaves(kind.value_type)
    if pa.types.is_map(kind):
        return _num_leaves(kind.key_type) + _num_leaves(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(_num_leaves(kind.field(i).type) for i in range(kind.num_fields))
    return _num_leaves(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else 1


def inside(array: pa.Array, names: Sequence[str]) -> tuple[pa.Array, Sequence[str]]:
    """Values at those fields of structs, up to a list, and the remaining names. Null where a struct is null."""
    while names and pa.types.is_struct(array.type):
        array = pc.struct_field(array, names[0]) if array.null_count else array.field(names[0])
        names = names[1:]
    return array, names
