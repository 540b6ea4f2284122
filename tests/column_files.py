"""Workloads of any columns, and Parquet files of their events in any layout; what the decoder must make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from common.config import SourceConfig
from common.schema import DTYPES, Column, EventSchema, Per, SourceColumn

INTEGERS = sorted(dtype for dtype in DTYPES if np.dtype(dtype).kind in "iu")
FLOATS = sorted(dtype for dtype in DTYPES if np.dtype(dtype).kind == "f")
_EXTRA = {"extra": {"a": "e", "b": [{"c": 1}]}}
"""A field of structs that nobody reads."""
_EXTRA_TYPE = pa.struct([("a", pa.string()), ("b", pa.list_(pa.struct([("c", pa.int64())])))])
LISTS = ("list", "large", "fixed")
FORMS = ("list", "flat", "struct", "deep struct", "shared struct", "struct of lists")


@dataclass(frozen=True)
class Form:
    """A column of the unit, and how files hold it."""

    column: Column
    form: str
    file_dtype: str
    outer: str
    """List of particles: list or large."""
    inner: str
    """List of fields."""

    @property
    def sources(self) -> tuple[SourceColumn, ...]:
        """The file columns that fill it."""
        if self.form == "list":
            return (SourceColumn(self.column.name, self.column.name),)
        prefix = {"flat": "", "deep struct": f"{self.column.name}.inner."}.get(self.form, f"{self.column.name}.")
        prefix = f"pulses.{self.outer}_" if self.form == "shared struct" else prefix
        return tuple(
            SourceColumn(f"{prefix}{self.column.name}_{name}", self.column.name, i)
            for i, name in enumerate(self.column.fields)
        )


@dataclass
class Made:
    """Events of a workload: what a file holds, and what a slot must. E events, P particles."""

    workload: EventSchema
    forms: Sequence[Form]
    counts: npt.NDArray[np.int64]
    """(E,) with null particles."""
    stored: dict[str, npt.NDArray[Any]]
    """Column -> (E, fields) or (P, fields) in the file's type."""
    seed: int = 0
    null_events: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    null_lists: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """(E,) lists of particles that are null instead of empty."""
    null_particles: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def is_null(self, top: str, index: int) -> bool:
        """True if that column of the file has the null, where an event or a particle has one: at least one column."""
        per = next(one.column.per for one in self.forms for source in one.sources if source.path[0] == top)
        if not (self.null_events if per == "event" else self.null_particles)[index]:
            return False
        paths = [source.path[0] for one in self.forms if one.column.per == per for source in one.sources]
        tops = list(dict.fromkeys(paths))
        rng = np.random.default_rng((self.seed, index))
        return bool(
            ((rng.random(len(tops)) < 0.5) | (np.arange(len(tops)) == rng.integers(len(tops))))[tops.index(top)]
        )

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(E + 1,) with null particles."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def event(self, row: int) -> dict[str, list[list[Any]]]:
        """Column -> rows of numbers, as they must lie in the slot."""
        found = {}
        for one in self.forms:
            values = self.stored[one.column.name].astype(one.column.dtype)
            if one.column.per == "event":
                found[one.column.name] = values[row : row + 1].tolist()
            else:
                mine = slice(*self.offsets[row : row + 2].tolist())
                found[one.column.name] = values[mine][~self.null_particles[mine]].tolist()
        return found


def values_of(rng: np.random.Generator, file_dtype: str, dtype: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """Numbers of the file's type that the column's can hold, the ends of its range among them."""
    kind = np.dtype(file_dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        return (rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30, shape)).astype(kind)
    least = max(np.iinfo(kind).min, np.iinfo(dtype).min)
    most = min(np.iinfo(kind).max, np.iinfo(dtype).max)
    values = rng.integers(least, most, shape, kind, endpoint=True)
    ends = rng.random(shape)
    values[ends < 0.1], values[ends > 0.9] = least, most
    return values


def make(forms: Sequence[Form], counts: Sequence[int], seed: int, *, nulls: bool = False) -> Made:
    """Random events of those columns."""
    rng = np.random.default_rng(seed)
    in_event, num = np.array(counts, np.int64), int(sum(counts))
    workload = EventSchema(
        name="made",
        columns=tuple(one.column for one in forms),
        source_columns=tuple(source for one in forms for source in one.sources),
        rules=(),
        source=SourceConfig(nulls="empty" if nulls else "error"),
    )
    stored = {
        one.column.name: values_of(
            rng,
            one.file_dtype,
            one.column.dtype,
            (len(counts) if one.column.per == "event" else num, len(one.column.fields)),
        )
        for one in forms
    }
    has_event_columns = nulls and any(one.column.per == "event" for one in forms)
    return Made(
        workload,
        forms,
        in_event,
        stored,
        seed,
        null_events=(rng.random(len(counts)) < 0.3) & has_event_columns,
        null_lists=(rng.random(len(counts)) < 0.5) & (in_event == 0) & nulls,
        null_particles=(rng.random(num) < 0.3) & nulls,
    )


def table_of(made: Made, *, extra: bool = False) -> pa.Table:
    """The events as a table; ``extra``: structs have a field that nobody reads, too."""
    tops: dict[str, list[tuple[Form, SourceColumn]]] = {}
    for one in made.forms:
        for source in one.sources:
            tops.setdefault(source.path[0], []).append((one, source))
    columns = {"unread": pa.array([["x"]] * len(made.counts))}
    for top, sources in tops.items():
        kind = _kind(sources, 0, extra)
        every = range(len(made.counts))
        if sources[0][0].form == "struct of lists":
            rows = [
                {
                    source.path[1]: _listed(made, top, row, lambda p, at=(one, source): _number(made, *at, p))
                    for one, source in sources
                }
                | (_EXTRA if extra else {})
                for row in every
            ]
        elif sources[0][0].column.per == "particle":
            kind = _list(sources[0][0].outer, kind, 0)
            rows = [_listed(made, top, row, lambda p, s=sources: _tree(made, s, 0, p, extra)) for row in every]
        else:
            rows = [None if made.is_null(top, row) else _tree(made, sources, 0, row, extra) for row in every]
        columns[top] = pa.array(rows, kind)
    return pa.table(columns)


def write(path: Path, made: Made, *, rows_per_group: int, extra: bool = False, **options: Any) -> Path:
    pq.write_table(table_of(made, extra=extra), path, row_group_size=rows_per_group, **options)
    return path


def _listed(made: Made, top: str, row: int, value: Callable[[int], Any]) -> list[Any] | None:
    if made.null_lists[row]:
        return None
    first, end = made.offsets[row : row + 2].tolist()
    return [None if made.is_null(top, p) else value(p) for p in range(first, end)]


def _number(made: Made, one: Form, source: SourceColumn, index: int) -> Any:
    values = made.stored[one.column.name][index].tolist()
    return values if source.field is None else values[source.field]


def _tree(made: Made, sources: Sequence[tuple[Form, SourceColumn]], depth: int, index: int, extra: bool) -> Any:
    """One value: a number, a list of numbers or a struct."""
    if len(sources[0][1].path) == depth + 1:
        return _number(made, *sources[0], index)
    names = dict.fromkeys(source.path[depth + 1] for _, source in sources)
    found: dict[str, Any] = dict(_EXTRA) if extra else {}
    for name in names:
        some = [(one, source) for one, source in sources if source.path[depth + 1] == name]
        found[name] = _tree(made, some, depth + 1, index, extra)
    return found


def _kind(sources: Sequence[tuple[Form, SourceColumn]], depth: int, extra: bool) -> pa.DataType:
    one, source = sources[0]
    if len(source.path) == depth + 1:
        number = pa.from_numpy_dtype(np.dtype(one.file_dtype))
        return _list(one.inner, number, len(one.column.fields)) if one.form == "list" else number
    fields = [pa.field("extra", _EXTRA_TYPE)] if extra else []
    for name in dict.fromkeys(source.path[depth + 1] for _, source in sources):
        some = [(one, source) for one, source in sources if source.path[depth + 1] == name]
        kind = _kind(some, depth + 1, extra)
        of_lists = one.form == "struct of lists"
        # What no null can be in has no mask of its own, but the struct around it may be null.
        fields.append(pa.field(name, _list(one.outer, kind, 0) if of_lists else kind, nullable=of_lists))
    return pa.struct(fields)


def _list(kind: str, value: pa.DataType, size: int) -> pa.DataType:
    return pa.list_(value, size or 1) if kind == "fixed" else (pa.list_ if kind == "list" else pa.large_list)(value)


@st.composite
def form(draw: st.DrawFn, name: str, per: Per) -> Form:
    """A column of any type and width, in any form that files may have."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    kind = np.dtype(dtype).kind
    file_dtype = draw(st.sampled_from([dtype] if kind == "b" else FLOATS if kind == "f" else INTEGERS))
    forms = [one for one in FORMS if per == "particle" or one not in ("struct of lists", "shared struct")]
    return Form(
        Column(name, per, dtype, tuple("xyz"[: draw(st.integers(1, 3))])),
        draw(st.sampled_from(forms)),
        file_dtype,
        draw(st.sampled_from(["list", "large"])),
        draw(st.sampled_from(LISTS)),
    )


@st.composite
def any_forms(draw: st.DrawFn) -> list[Form]:
    """Columns per event and per particle."""
    events = [draw(form(f"e{i}", "event")) for i in range(draw(st.integers(0, 3)))]
    particles = [draw(form(f"p{i}", "particle")) for i in range(draw(st.integers(1, 4)))]
    outer = draw(st.sampled_from(["list", "large"]))  # of the struct that they share
    particles = [
        Form(one.column, one.form, one.file_dtype, outer, one.inner) if one.form == "shared struct" else one
        for one in particles
    ]
    return draw(st.permutations(events + particles))
