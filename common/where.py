"""Filter of events, `stream.where`: an expression of their columns, evaluated on decoded rows, or on bounds of them.

R rows. The names are those of the workload: `primary.energy_gev` is a field, `muons.count` the number of particles, and
a column of one field is its own name. Values are those of the files, before a workload's final change of a unit.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError
from common.schema import EventSchema

Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Bounds = Mapping[str, tuple[float, float]]
"""Least and largest value of a row group, by name; of a name that is absent nothing is known."""

_MOST_CHARACTERS, _MOST_NODES = 1000, 300
_SYNTAX = "write comparisons with < <= > >= == !=, joined by and, or, not; numbers, + - * /, abs, cos, log10"
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MIRRORED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {"abs": np.abs, "cos": np.cos, "log10": np.log10}


def event_fields(schema: EventSchema) -> dict[str, tuple[str, int]]:
    """Return column and index of each field of events that files have, by its name in conditions."""
    return {
        name: (column.name, index)
        for column in schema.read_columns
        if column.per == "event"
        for index, field in enumerate(column.fields)
        for name in (f"{column.name}.{field}", *([column.name] if len(column.fields) == 1 else []))
    }


class Where:
    """Condition that an event of the stream fulfils. NaN is unequal to all; other comparisons with it are false."""

    def __init__(self, text: str, schema: EventSchema) -> None:
        """Raise BadInputError for a text that is no condition on columns of the schema."""
        self._text = text
        self._fields = event_fields(schema)
        self._dtypes = {name: schema.column(column).dtype for name, (column, _) in self._fields.items()}
        self._counts = {f"{column.name}.count" for column in schema.read_columns if column.per == "particle"}
        if len(text) > _MOST_CHARACTERS:
            raise self._error(f"it has {len(text)} characters; at most {_MOST_CHARACTERS} are read")
        one_row = {one.name: np.zeros((1, len(one.fields)), one.dtype) for one in schema.read_columns}
        try:
            self._tree = ast.parse(" ".join(text.split()), mode="eval").body
            if sum(1 for _ in ast.walk(self._tree)) > _MOST_NODES:
                raise self._error(f"it has more than {_MOST_NODES} names, numbers and operators")
            self.mask(one_row, np.zeros(1, np.int64))  # each part is evaluated: what can't be is found here
        except (SyntaxError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError):
            raise self._error(_SYNTAX) from None

    def mask(self, event_columns: Mapping[str, Array], counts: Array) -> Bool:
        """Return which of the rows fulfil the condition: (R,). ``event_columns``: (R, fields); ``counts``: (R,)."""

        def number(node: ast.expr) -> Any:
            match node:
                case ast.Constant() if type(node.value) in (int, float):
                    return node.value
                case ast.UnaryOp(op=ast.USub()):
                    return -number(node.operand)
                case ast.BinOp() if type(node.op) in _ARITHMETIC:
                    return _ARITHMETIC[type(node.op)](number(node.left), number(node.right))
                case ast.Call(args=[argument], keywords=[]) if (name := ast.unparse(node.func)) in _FUNCTIONS:
                    return _FUNCTIONS[name](number(argument))
                case ast.Name() | ast.Attribute():
                    name = ast.unparse(node)
                    if name in self._counts:
                        return counts
                    if name not in self._fields:
                        raise self._unknown(name)
                    column, index = self._fields[name]
                    return event_columns[column][:, index]
            raise self._error(f"{ast.unparse(node)!r} is no number: {_SYNTAX}")

        def condition(node: ast.expr) -> Any:
            match node:
                case ast.BoolOp():
                    join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
                    return reduce(join, [condition(part) for part in node.values])
                case ast.UnaryOp(op=ast.Not()):
                    return np.logical_not(condition(node.operand))
                case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                    values = [number(one) for one in (node.left, *node.comparators)]
                    pairs = zip(node.ops, values, values[1:], strict=False)
                    return reduce(np.logical_and, [_COMPARISONS[type(op)](one, other) for op, one, other in pairs])
            raise self._error(f"{ast.unparse(node)!r} is no condition: {_SYNTAX}")

        with np.errstate(all="ignore"):
            return np.broadcast_to(condition(self._tree), counts.shape)

    def may_hold(self, bounds: Bounds) -> bool:
        """Return False if no row between these bounds fulfils the condition. Arithmetic is not looked into."""

        def possible(node: ast.expr) -> bool:
            match node:
                case ast.BoolOp():
                    join = all if isinstance(node.op, ast.And) else any
                    return join(possible(part) for part in node.values)
                case ast.Compare():
                    sides = [node.left, *node.comparators]
                    pairs = zip(node.ops, sides, sides[1:], strict=False)
                    return all(self._pair_may_hold(op, left, right, bounds) for op, left, right in pairs)
            return True

        return possible(self._tree)

    def _pair_may_hold(self, op: ast.cmpop, left: ast.expr, right: ast.expr, bounds: Bounds) -> bool:
        kind: type[ast.cmpop] = type(op)
        if ast.unparse(right) in bounds:
            left, right, kind = right, left, _MIRRORED[kind]
        try:
            limit = ast.literal_eval(right)
        except ValueError:
            return True
        known = bounds.get(ast.unparse(left))
        if known is None:
            return True
        low, high = known
        if "f" in (dtype := self._dtypes[ast.unparse(left)]):
            low, high = np.array(known).astype(dtype)  # as the rows are compared: numpy rounds the number to this type
        if kind is ast.Eq:
            return bool(low <= limit) and bool(high >= limit)
        if kind is ast.NotEq:  # NaN is in no statistics, and unequal
            return "f" in dtype or not low == limit == high
        return bool(_COMPARISONS[kind](low if kind in (ast.Lt, ast.LtE) else high, limit))

    def _unknown(self, name: str) -> BadInputError:
        names = [*self._fields, *sorted(self._counts)]
        leaves = {known.rpartition(".")[2]: known for known in names}
        like = difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1)
        near = difflib.get_close_matches(name, names, n=1) or [leaves[leaf] for leaf in like]
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        return self._error(f"there is no {name}; {hint}")

    def _error(self, problem: str) -> BadInputError:
        return BadInputError(f"stream.where = {self._text[:200]!r}: {problem}")
