"""Common schema of files written from different inputs: types are widened where no value can change."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from common.errors import BadInputError


def common_schema(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Schema with the columns of all files (name, schema), in order of appearance; missing ones are null.

    Raises BadInputError naming the column and two files with incompatible types.
    """
    found: dict[str, tuple[pa.DataType, str]] = {}
    for file, schema in schemas:
        for field in schema:
            known, known_file = found.get(field.name, (field.type, file))
            kind = common_type(known, field.type)
            if kind is None:
                raise BadInputError(
                    f"{file}: column {field.name!r} has type {field.type}, but {known} in {known_file}: no type holds "
                    "both; move one of the files to another folder"
                )
            found[field.name] = (kind, known_file)
    return pa.schema([(name, kind) for name, (kind, _) in found.items()])


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Smallest type that holds every value of both exactly; None if there is none."""
    one, other = _plain(one), _plain(other)
    if one.equals(other):
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if _is_list(one) and _is_list(other):
        value = common_type(one.value_type, other.value_type)
        is_large = pa.types.is_large_list(one) or pa.types.is_large_list(other)
        return None if value is None else (pa.large_list if is_large else pa.list_)(value)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _common_struct(one, other)
    if _is_text(one) and _is_text(other):
        return pa.large_string()
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        narrow, wide = sorted((one, other), key=lambda kind: kind.bit_width)
        fits = pa.types.is_signed_integer(wide) and narrow.bit_width < wide.bit_width
        return wide if fits or pa.types.is_signed_integer(one) == pa.types.is_signed_integer(other) else None
    return None


def _common_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Common type of two structs with the same fields in the same order."""
    fields, others = list(one), list(other)
    if [field.name for field in fields] != [field.name for field in others]:
        return None
    kinds = [common_type(a.type, b.type) for a, b in zip(fields, others, strict=True)]
    names = [field.name for field in fields]
    return None if None in kinds else pa.struct(list(zip(names, kinds, strict=True)))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Type without dictionaries and without names of list elements, which depend on the writer."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if _is_list(kind):
        return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(_plain(kind.value_type))
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
