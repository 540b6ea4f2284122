"""Settings for files whose lists have other numbers than the workload's, or that lack columns of ids. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from common.schema import EventSchema, SourceColumn

MADE_IDS = ["--set source.ids=rows"]
"""Settings for files without ids."""


def fields_problem(
    workload: EventSchema,
    widths: Mapping[str, int],
    missing: Sequence[str] = (),
    there: Sequence[str] = (),
    ids: Sequence[str] = (),
) -> str | None:
    """One message for all lists of other numbers and all missing columns of ids, with the settings; None: no problem.

    ``widths``: numbers in each innermost list, by file column, as far as known. ``there``: the file's columns;
    ``ids``: settings for its missing ids, unless these are in a list.
    """
    lists = {name: workload.source_column(name) for name in widths}
    others = {name: width for name, width in widths.items() if width != len(workload.stored_fields(lists[name]))}
    if not others and not missing:
        return None
    per_event = {name for name in others if workload.per(lists[name]) == "event"}
    inside = bool(missing) and any(_proposed(lists[name], workload, others[name], missing) for name in per_event)
    found, settings = [], []
    for name, width in others.items():
        fields = workload.stored_fields(lists[name])
        found.append(f"{name} has lists of {width} numbers; expected {len(fields)} ({', '.join(fields)})")
        proposed = _proposed(lists[name], workload, width, missing if inside else ())
        value = json.dumps(proposed) if proposed else f"[the names of the {width} numbers, in order]"
        if width > len(workload.column(lists[name].into).fields):  # else there are too few, whatever they are
            settings.append(f"--set 'source.fields.{lists[name].key}={value}'")
    if missing:
        names = ", ".join(map(repr, missing))
        one_or_more = f"column {names} is missing" if len(missing) == 1 else f"columns {names} are missing"
        found.append(f"{one_or_more}; the file has {', '.join(there) or 'none'}")
        if not inside:
            found[-1] += " (source.ids=rows makes ids from file and row)" if ids == MADE_IDS else ""
            settings += ids
    condition = "Give" if ids == MADE_IDS else "If these are its ids, give"
    if others:
        condition = "If these are its numbers, in order, give"
    return ". ".join(["; ".join(found), *([f"{condition} {' '.join(settings)}"] if settings else [])])


def _proposed(source: SourceColumn, workload: EventSchema, width: int, ids: Sequence[str]) -> tuple[str, ...] | None:
    """Names of ``width`` numbers, the ids first; None: no such list is known."""
    known = (workload.column(source.into).fields, source.also_seen)
    return next(((*ids, *fields) for fields in known if fields and width == len(ids) + len(fields)), None)
