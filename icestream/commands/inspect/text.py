"""Text of a file's description, for people."""

from __future__ import annotations

from statistics import median

from common.printable import printable
from icestream.commands.inspect.describe import Description, Number, Range

_LONGEST = 4000


def lines(found: Description) -> list[str]:
    """Printable lines, of which the first names the file: names of columns may contain any character."""
    return [printable(line, _LONGEST) for line in _lines(found)]


def _lines(found: Description) -> list[str]:
    text = [f"{found.name}: {found.kind or 'unknown'}, {found.size_bytes / 2**20:,.2f} MiB"]
    if found.layout:
        width = max(len(column.name) for column in found.layout)
        text += [
            f"  {column.name:<{width}}  {column.type}  {column.storage}" + ("" if column.is_read else "  (not read)")
            for column in found.layout
        ]
    if found.row_groups:
        rows = found.row_groups
        name = "row groups" if found.kind == "Parquet" else "spans"
        text.append(
            f"  {len(rows):,} {name} of {min(rows):,} / {median(rows):,.0f} / {max(rows):,} rows "
            "(least / median / most)"
        )
    if found.events:
        exact = "at most " if found.kind == "Parquet" else ""
        share = found.empty / found.events
        text.append(f"  {found.events:,} events, {found.empty:,} of them empty ({share:.1%})")
        text.append(
            f"  {found.particles:,} particles"
            + (f", {found.dropped:,} fillers and nulls dropped" if found.dropped else "")
            + f" (the footer says {exact}{found.particles_bound:,})"
        )
    nulls = {name: number for name, number in found.nulls.items() if number}
    if nulls:
        what = ", ".join(f"{number:,} of {name}" for name, number in nulls.items())
        text.append(f'  nulls: {what}; a run sets these events aside as invalid, unless source.nulls = "empty"')
    ranges = ([found.multiplicity] if found.multiplicity else []) + found.ranges
    if ranges:
        width = max(len(one.name) for one in ranges)
        text.append(f"  {'':<{width}}{'least':>16}{'median':>16}{'largest':>16}")
        text += [_range_line(one, width) for one in ranges]
    if found.multiplicity_above:
        above = ", ".join(f"{share} have more than {count:,.0f}" for share, count in found.multiplicity_above.items())
        text.append(f"  particles of an event: {above}")
    for number, event in enumerate(found.first_events):
        ids = ", ".join(f"{name} {value}" for name, value in event.ids.items())
        columns = f"{ids}; {_fields(event.event)}" if ids else _fields(event.event)
        text.append(f"  event {number}: {columns}; {event.num_particles:,} particles")
        text += [f"    {_fields(particle)}" for particle in event.particles]
        if event.num_particles > len(event.particles):
            text.append(f"    … and {event.num_particles - len(event.particles):,} more")
    return text + [f"  PROBLEM: {problem}" for problem in found.problems]


def _range_line(one: Range, width: int) -> str:
    return f"  {one.name:<{width}}{one.least:>16,.6g}{one.median:>16,.6g}{one.largest:>16,.6g}"


def _fields(values: dict[str, Number]) -> str:
    return ", ".join(f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in values.items())
