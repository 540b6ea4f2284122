"""Columns, units and dtypes of source files and of slots, defined once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

from common.config import SourceConfig
from common.errors import BadInputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SCHEMA_VERSION = 2
"""Version of the schema, part of the plan hash: raise it when the meaning or the order of a column changes."""


TYPE_NAMES = {
    **{"bool": "|b1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8"},
    **{"uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "float32": "<f4", "float64": "<f8"},
}
"""Types of `source.extra`, as a unit's columns have them."""
DTYPES = frozenset(TYPE_NAMES.values())
"""Types of a unit's columns: numpy's names."""

Per = Literal["event", "particle"]


@dataclass(frozen=True)
class Column:
    """Named array of a unit: one row per event or per particle, ``fields`` wide."""

    name: str
    per: Per
    dtype: str
    """Type name, one of DTYPES."""
    fields: tuple[str, ...]


@dataclass(frozen=True)
class SourceColumn:
    """Column of a source file, and the column of the unit that it fills.

    It has one value per event or, with one list around them, per particle, like ``into``. Types are those of
    ``into``: bool from bool, integers from integers of any width if the values fit, floats from floats, which are
    rounded; a RelativeField also from integers.
    """

    name: str
    """Name in the file. Fields of structs follow after a dot: ``pulses.time`` is field ``time`` of a struct, of a list
    of structs, or of a struct of lists."""
    into: str
    """Column of the unit that it fills."""
    field: int | None = None
    """Field of that column; None: all of them, each value being a list of that many numbers."""
    stored: tuple[str, ...] = ()
    """Numbers in each innermost list of the files, in order. Empty: the fields of ``into``, and no more."""
    known_as: str = ""
    """The workload's name of a column that `source.columns` names otherwise; empty: ``name``."""
    part_of_list: bool = False
    """True for one of several columns of numbers, in the place of the column ``known_as`` of lists."""

    @property
    def path(self) -> tuple[str, ...]:
        """Column of the file, and fields of structs from the outermost on."""
        return tuple(self.name.split("."))

    @property
    def key(self) -> str:
        """The workload's name of the column, by which settings name it."""
        return self.known_as or self.name

    @property
    def is_list(self) -> bool:
        """True if each value is a list: the fields of ``into``."""
        return self.field is None


@dataclass(frozen=True)
class ValueRule:
    """Allowed values of a field: finite, at least ``minimum``, at most ``maximum``. Another makes its event invalid.

    A field of floats without a rule must be finite.
    """

    column: str
    field: int
    minimum: float = float("-inf")
    drop_unless_positive: bool = False
    """True if a particle with 0 or less here is a filler (written by converters): it is dropped and counted."""
    maximum: float = float("inf")


@dataclass(frozen=True)
class RelativeField:
    """Field of the particles of which only the differences within an event matter, such as a time.

    Where an event has a magnitude above ``most`` in a file whose type holds more digits than the column's, whole
    numbers among them, its values are counted from its smallest one before they are rounded.
    """

    column: str
    field: int
    most: float


@dataclass(frozen=True)
class UnitArrays:
    """Views of one unit's arrays, in a slot or in other memory."""

    offsets: npt.NDArray[np.int64]
    """Particle offsets: event e owns particles offsets[e] to offsets[e + 1]. (E + 1,)."""
    microbatch_bounds: npt.NDArray[np.int64]
    """Event bounds: microbatch m holds events bounds[m] to bounds[m + 1]. (M + 1,)."""
    particle_columns: dict[str, npt.NDArray[np.generic]]
    """Array by column name: (P, fields)."""
    event_columns: dict[str, npt.NDArray[np.generic]]
    """Array by column name: (E, fields); source columns included."""

    def only(self, names: Collection[str]) -> UnitArrays:
        """The same unit with the columns of these names."""
        return replace(
            self,
            particle_columns={name: column for name, column in self.particle_columns.items() if name in names},
            event_columns={name: column for name, column in self.event_columns.items() if name in names},
        )


class FinishUnit(Protocol):
    """Final change by a workload of a unit in its slot. A frozen dataclass: its fields are part of the plan hash."""

    def __call__(self, arrays: UnitArrays, source: SourceConfig) -> None:
        """Change the columns in place, event by event: the result must not depend on the order of the events."""


@dataclass(frozen=True)
class FlatTables:
    """Layout of events in three HDF5 datasets: one row per event, one row per particle, and particles per event.

    The ids come first in every row of the first two; the numbers of a list follow. An event without particles may be
    stored as one particle of zeros only.
    """

    events: str
    particles: str
    counts: str
    ids: tuple[str, ...]
    """File columns of the leading numbers."""
    event_list: str
    """File column whose numbers follow the ids in a row of ``events``."""
    particle_list: str
    """File column whose numbers follow the ids in a row of ``particles``."""


@dataclass(frozen=True)
class EventSchema:
    """Columns of a workload's units, and the file columns that they are read from."""

    name: str
    columns: tuple[Column, ...]
    source_columns: tuple[SourceColumn, ...]
    rules: tuple[ValueRule, ...]
    finish_unit: FinishUnit | None = None
    """Final change by the decoder; None: no change."""
    derived: tuple[str, ...] = ()
    """Columns of the unit that ``finish_unit`` fills; files have none for them."""
    identity: str | None = None
    """Column of the event's id, by which `stream.held_out` chooses: integers, read from files. Events with equal ids
    are held out together; None: none can be."""
    tables: FlatTables | None = None
    """Layout of the same events in HDF5 files; None: no such layout."""
    source: SourceConfig = SourceConfig()  # noqa: RUF009  frozen
    """Content of the files that are read."""
    physical: tuple[ValueRule, ...] = ()
    """Wide physical ranges: a value outside is shown by `icestream inspect` and `doctor`, and read all the same. No
    part of the plan hash."""
    relative: tuple[RelativeField, ...] = ()
    """Fields that files may give absolute although only their differences matter."""

    def __post_init__(self) -> None:
        """Raise ValueError for columns that no file could fill."""
        problem = next(_contradictions(self), None)
        if problem:
            raise ValueError(f"workload {self.name}: {problem}")

    def per(self, source: SourceColumn) -> Per:
        """Unit of one value of the file column: an event or a particle."""
        return self.column(source.into).per

    @property
    def read_columns(self) -> tuple[Column, ...]:
        """Columns that are filled from files, in slot order: all but the derived ones."""
        return tuple(column for column in self.columns if column.name not in self.derived)

    @property
    def step_columns(self) -> tuple[str, ...]:
        """Names of the columns that a training step is given: all but the event's id."""
        return tuple(column.name for column in self.columns if column.name != self.identity)

    def columns_per(self, per: Per) -> tuple[Column, ...]:
        """Columns with one row per event, or per particle, in slot order."""
        return tuple(column for column in self.columns if column.per == per)

    def column(self, name: str) -> Column:
        """Column of the unit by name."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def stored_fields(self, source: SourceColumn) -> tuple[str, ...]:
        """Numbers of an innermost list of this file column, in the files' order."""
        return source.stored or self.column(source.into).fields

    def source_column(self, name: str) -> SourceColumn:
        """Column of the file by name."""
        return next(column for column in self.source_columns if column.name == name)

    def relative_field(self, column: str, field: int) -> RelativeField | None:
        """Rule by which this field is made relative to the event; None: it is read as it is."""
        return next((rule for rule in self.relative if (rule.column, rule.field) == (column, field)), None)

    def place_in_list(self, source: SourceColumn) -> tuple[SourceColumn, int] | None:
        """List per event that holds this id by `source.fields`, and its place in it; None: no list does."""
        for holder in self.source_columns:
            if not source.is_list and self.per(holder) == "event" and source.name in holder.stored:
                return holder, holder.stored.index(source.name)
        return None

    def may_lack(self, source: SourceColumn) -> bool:
        """True if files without this column are read: its ids are in a list, or made (`source.ids`)."""
        is_made = self.source.ids == "rows" and source.into == self.identity
        return is_made or self.place_in_list(source) is not None

    def with_all_stored(self) -> EventSchema:
        """Same schema, with every number of the files' lists but ids, in their order and as stored."""
        columns = {source.name for source in self.source_columns}
        stored = {
            source.into: tuple(name for name in self.stored_fields(source) if name not in columns)
            for source in self.source_columns
            if source.is_list
        }

        def moved(column: str, field: int) -> int:
            return stored[column].index(self.column(column).fields[field]) if column in stored else field

        return replace(
            self,
            columns=tuple(replace(one, fields=stored.get(one.name, one.fields)) for one in self.read_columns),
            rules=tuple(replace(rule, field=moved(rule.column, rule.field)) for rule in self.rules),
            physical=tuple(replace(rule, field=moved(rule.column, rule.field)) for rule in self.physical),
            relative=tuple(replace(rule, field=moved(rule.column, rule.field)) for rule in self.relative),
            finish_unit=None,
            derived=(),
        )

    def stored_as(self, source: SourceConfig) -> EventSchema:
        """Same schema, read from files like those. Raises BadInputError that names the key and the missing numbers."""
        if source.ids == "rows" and (self.identity is None or self.column(self.identity).dtype[2] != "8"):
            raise BadInputError(f'source.ids = "rows": the events of workload {self.name} have no ids of 64 bits')
        lists = {column.name: column for column in self.source_columns if column.is_list}
        for name, stored in source.fields.items():
            key = f"source.fields.{name}"
            if name not in lists:
                raise BadInputError(f"{key}: the workload {self.name} has no such list; it has {', '.join(lists)}")
            missing = [field for field in self.column(lists[name].into).fields if field not in stored]
            if missing or len(set(stored)) != len(stored):
                wrong = f"lacks {', '.join(missing)}" if missing else "names a number twice"
                raise BadInputError(f"{key} = {list(stored)} {wrong}; name all numbers of a list, in order")
        columns = tuple(
            replace(column, stored=tuple(source.fields.get(column.name, ()))) for column in self.source_columns
        )
        return _with_extra(_renamed(replace(self, source_columns=columns, source=source)))

    def in_own_layout(self) -> EventSchema:
        """Same schema, with the workload's own names of file columns."""
        own: dict[str, SourceColumn] = {}
        for one in self.source_columns:
            changes = {"known_as": "", "part_of_list": False} | ({"field": None} if one.part_of_list else {})
            own.setdefault(one.key, replace(one, name=one.key, **changes))  # type: ignore[arg-type]
        return replace(self, source_columns=tuple(own.values()))


def _renamed(schema: EventSchema) -> EventSchema:
    """Schema that reads Parquet files with the names of its `source.columns`. Raises BadInputError."""
    names = {name: other for name, other in schema.source.columns.items() if name != other}
    if not names:
        return schema
    fields = schema.source.fields
    known = {column.name: column for column in schema.source_columns}
    if unknown := sorted(names.keys() - known.keys()):
        raise BadInputError(
            f"source.columns.{unknown[0]}: the workload {schema.name} has no such column; it has {', '.join(known)}"
        )
    renamed: list[SourceColumn] = []
    for column in schema.source_columns:
        name = names.get(column.name, column.name)
        if isinstance(name, str):
            renamed.append(replace(column, name=name, known_as="" if name == column.name else column.name))
            continue
        key, wanted = f"source.columns.{column.name}", schema.column(column.into).fields
        if not column.is_list or column.name in fields:
            other = "is one number" if not column.is_list else f"is a list with source.fields.{column.name}"
            raise BadInputError(f"{key} = {list(name)}: {column.name} {other}: give the name of one column")
        if len(name) != len(wanted):
            raise BadInputError(f"{key} = {list(name)}: expected {len(wanted)} columns, of {', '.join(wanted)}")
        renamed += [
            SourceColumn(part, column.into, index, known_as=column.name, part_of_list=True)
            for index, part in enumerate(name)
        ]
    times = Counter(one.name for one in renamed)
    for one in renamed:
        if times[one.name] > 1:
            raise BadInputError(f"source.columns: {one.name!r} is named twice")
        if not all(one.path):
            raise BadInputError(f"source.columns.{one.key}: a name is empty")
    try:
        return replace(schema, source_columns=tuple(renamed), tables=None)
    except ValueError as error:
        raise BadInputError(f"source.columns: {error}") from None


_OF_UNITS = ("source_file", "source_row", "offsets", "microbatch_bounds")
"""Names of arrays that each unit has: see common/unit_arrays.py."""


def _with_extra(schema: EventSchema) -> EventSchema:
    """Schema that hands the columns of its `source.extra` through. Raises BadInputError."""
    if not schema.source.extra:
        return schema
    columns: list[Column] = []
    for name, kind in schema.source.extra.items():
        key, number = f"source.extra.{name}", kind.removeprefix("list<").removesuffix(">")
        if number not in TYPE_NAMES or kind not in (number, f"list<{number}>"):
            raise BadInputError(
                f"{key} = {kind!r}: expected a type, one of {', '.join(TYPE_NAMES)}, or one such as list<float32> for a"
                " number of each particle"
            )
        taken = {*schema._by_name, *(one.path[0] for one in schema.source_columns)}
        if name in (*taken, *_OF_UNITS):
            raise BadInputError(f"{key}: the name is taken; the workload {schema.name} has {', '.join(sorted(taken))}")
        columns.append(Column(name, "event" if kind == number else "particle", TYPE_NAMES[number], (name,)))
    sources = tuple(SourceColumn(column.name, column.name, 0) for column in columns)
    return replace(
        schema, columns=(*schema.columns, *columns), source_columns=(*schema.source_columns, *sources), tables=None
    )


def _contradictions(schema: EventSchema) -> Iterator[str]:
    """Reasons that no file could fill the columns."""
    columns = {column.name: column for column in schema.columns}
    if len(columns) < len(schema.columns):
        yield "two columns have one name"
    if not any(column.per == "particle" for column in schema.columns):
        yield "it has no column of particles"
    for column in schema.columns:
        if column.dtype not in DTYPES:
            yield f"column {column.name} has type {column.dtype}; expected one of {', '.join(sorted(DTYPES))}"
    if schema.derived and schema.finish_unit is None:
        yield "it has derived columns, but no finish_unit that fills them"
    targets = [
        *schema.derived,
        *(source.into for source in schema.source_columns),
        *(rule.column for rule in (*schema.rules, *schema.physical)),
        *(rule.column for rule in schema.relative),
    ]
    unknown = sorted(set(targets) - columns.keys())
    if unknown:
        yield f"it has no column {unknown[0]}, but a file column, a rule or a derived column of it"
        return
    for one in schema.relative:
        if columns[one.column].per != "particle" or columns[one.column].dtype[1] != "f":
            yield f"column {one.column} is relative to the event, but no column of floats per particle"
    filled: Counter[tuple[str, int | None]] = Counter()
    of_file: dict[str, Per] = {}
    for source in schema.source_columns:
        target = columns[source.into]
        filled.update((target.name, i) for i in (range(len(target.fields)) if source.is_list else (source.field,)))
        if of_file.setdefault(source.path[0], target.per) != target.per:
            yield f"column {source.path[0]} of its files has values per event and per particle"
        if any(other.name.startswith(f"{source.name}.") for other in schema.source_columns):
            yield f"column {source.name} of its files is a value and a struct"
    wanted: set[tuple[str, int | None]] = {(one.name, i) for one in schema.read_columns for i in range(len(one.fields))}
    once = {field for field, times in filled.items() if times == 1}
    wrong = sorted(f"{name}[{i}]" for name, i in (filled.keys() | wanted) - (once & wanted))
    if wrong:
        yield f"its file columns must fill each field that is not derived once, but not {', '.join(wrong)}"
    if schema.identity is not None and not any(
        one.per == "event" and one.dtype[1] in "iu" for one in schema.read_columns if one.name == schema.identity
    ):
        yield f"its identity {schema.identity} is no column of integers per event that files fill"
    for rule in (*schema.rules, *schema.physical):
        if not 0 <= rule.field < len(columns[rule.column].fields):
            yield f"{rule} is about a field that its column has not"


def no_tables(schema: EventSchema) -> str:
    """Return why a workload has no layout in HDF5."""
    if schema.source.extra or schema.source.columns:
        return "HDF5, whose columns source.extra and source.columns can't name: write Parquet files"
    return f"HDF5, which the workload {schema.name} is not read from: write Parquet files"


# Source of an event; the decoder adds these to every schema.
SOURCE_COLUMNS = (
    Column("source_file", "event", "<i4", ("index_in_inventory",)),
    Column("source_row", "event", "<i8", ("row_in_file",)),
)
