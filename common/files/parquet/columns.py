"""Source columns in a Parquet file: where they are, and their lists as arrays of numpy.

A column of one value an event is a number, or a list of numbers; of one value a particle it has one list around it.
Both may be fields of structs, and the list of particles may be around the struct or inside it. A list may be list,
large_list or fixed_size_list, whole or sliced, with or without nulls: it is read through its offsets and values, never
row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.rows import BadList, BadNumber, Bool, Int64
from common.schema import EventSchema, SourceColumn
from common.unit_arrays import Array

_KINDS = {"b": "bool", "i": "integer", "u": "integer", "f": "float"}


def is_list(kind: pa.DataType) -> bool:
    """True for each of the three list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def extra_types(path: Path) -> dict[str, str]:
    """Return the types of a file's columns, by name, as `source.extra` has them; nothing of a damaged file."""
    try:
        return {field.name: _extra_type(field.type) for field in pq.read_schema(path)}
    except (pa.ArrowException, OSError):
        return {}


def _extra_type(kind: pa.DataType) -> str:
    if is_list(kind):
        return f"list<{_extra_type(kind.value_type)}>"
    return {"float": "float32", "double": "float64", "halffloat": "float32"}.get(str(kind), str(kind))


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


def lists_of(values: Array, kind: pa.DataType | None = None) -> pa.ListArray:
    """Return a matrix (N, width) as N lists, of type ``kind`` if given."""
    bounds = np.arange(len(values) + 1, dtype=np.int32) * np.int32(values.shape[1])
    numbers = pa.array(np.ascontiguousarray(values).reshape(-1), None if kind is None else kind.value_type)
    return pa.ListArray.from_arrays(pa.array(bounds), numbers, type=kind)


def null_mask(array: pa.Array) -> Bool | None:
    """True where a value is null; None if no value is. (N,)."""
    if not array.null_count:
        return None
    mask: Bool = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def list_lengths(lists: pa.Array) -> Int64:
    """Number of values in each list, 0 for a null one. (N,)."""
    if pa.types.is_fixed_size_list(lists.type):
        lengths = np.full(len(lists), lists.type.list_size, np.int64)
    else:
        lengths = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    null = null_mask(lists)
    if null is not None:
        lengths[null] = 0
    return lengths


def flattened(lists: pa.Array) -> pa.Array:
    """Values of all lists, concatenated: no copy if no list is null."""
    if lists.null_count or pa.types.is_fixed_size_list(lists.type):
        return lists.flatten()
    offsets = lists.offsets
    first = offsets[0].as_py()
    return lists.values.slice(first, offsets[-1].as_py() - first)


def matrix(lists: pa.Array, width: int, columns: slice | list[int], dtype: str) -> Array:
    """Chosen columns of N lists, none of them null, that must have ``width`` numbers each: (N, columns) of ``dtype``.

    The result is a view of Arrow's buffer if dtype and columns are the stored ones. Raises BadList.
    """
    return np.ascontiguousarray(converted(stored_matrix(lists, width, columns), dtype))


def stored_matrix(lists: pa.Array, width: int, columns: slice | list[int]) -> Array:
    """The same numbers in the type of the file. Raises BadList."""
    if not pa.types.is_fixed_size_list(lists.type):
        offsets = lists.offsets.to_numpy()
        # One comparison instead of a difference and a comparison: the offsets of lists of one length are multiples.
        expected = _multiples(1 << max(len(offsets) - 1, 1).bit_length(), width, offsets.dtype.str)[: len(offsets)]
        if not np.array_equal(offsets - offsets[0] if offsets[0] else offsets, expected):
            lengths = np.diff(offsets)
            wrong = lengths != width
            raise BadList(wrong, f"a list has {lengths[np.argmax(wrong)]} numbers", f"{width}")
    elif len(lists) and lists.type.list_size != width:
        raise BadList(np.ones(len(lists), np.bool_), f"a list has {lists.type.list_size} numbers", f"{width}")
    values = flattened(lists)
    null = null_mask(values)
    if null is not None:
        raise BadList(np.asarray(null.reshape(-1, width).any(axis=1)), "a number is null", "none")
    stored: Array = values.to_numpy(zero_copy_only=False).reshape(-1, width)[:, columns]
    return stored


def converted(values: Array, dtype: str) -> Array:
    """Numbers as ``dtype``: integers exactly, floats rounded. (N,) or (N, F). Raises BadNumber for too large ones, and
    for floats that are no whole numbers if ``dtype`` is one of integers."""
    target = np.dtype(dtype)
    if values.dtype == target:
        return values
    if target.kind == "f":
        try:
            with np.errstate(over="raise"):
                return values.astype(target)
        except FloatingPointError:
            with np.errstate(over="ignore"):
                bad = np.isinf(values.astype(target)) & ~np.isinf(values)
            found = f"is inf as {target} ({values[bad][0]:g} in the file)"
            raise BadNumber(bad, found, "a finite number") from None
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # a number that is none is changed by the cast, and so detected
            whole = values.astype(target)
        bad = np.asarray(whole.astype(values.dtype) != values)
        if bad.any():
            raise BadNumber(bad, f"is {values[bad][0]:g}", "a whole number")
        return whole
    if not np.can_cast(values.dtype, target) and values.size:
        limits = np.iinfo(target)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            bad = np.asarray((values < limits.min) | (values > limits.max))  # type: ignore[operator]
            raise BadNumber(bad, f"is {values[bad][0]}", f"{limits.min} to {limits.max} ({target})")
    return values.astype(target)


@lru_cache(maxsize=8)
def _multiples(length: int, width: int, dtype: str) -> Array:
    """Multiples 0, width, 2 width, … (length,)."""
    return np.arange(0, length * width, width, dtype=dtype)
