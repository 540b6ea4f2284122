"""All rows of one local file in order, without a run: its parts as the planner cuts them, and what they hold."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path

from common.config import StreamConfig
from common.files.by_content import ContentReader
from common.files.footers import read_footer
from common.files.rows import BadRowsError, RaggedRows, first_invalid
from common.messages import Part
from common.plan import Footer, SlotCapacity, StagedFile, plan_block
from common.schema import EventSchema


def plan_file(path: Path, workload: EventSchema, stream: StreamConfig, *, name: str = "") -> tuple[Footer, list[Part]]:
    """Footer and parts of a file, which errors name ``name`` (by default its path).

    Raises BadInputError if the file can't be planned; its text doesn't name the file.
    """
    capacity = SlotCapacity(workload, stream)
    footer = read_footer(path, workload, stream, capacity)
    staged = StagedFile(0, str(path), footer, remote=name)
    units = plan_block(0, 0, 0, [staged], capacity=capacity, stream=stream, seed=0)
    return footer, [part for unit in units for part in unit.parts]


def rows_of(parts: Iterable[Part], workload: EventSchema) -> Generator[RaggedRows]:
    """Rows of the parts, a part at a time (see Reader). Raises BadRowsError, which names the file; an invalid event is
    an error, too."""
    with closing(ContentReader(workload)) as reader:
        for part in parts:
            row = part.file_row + part.first_row
            for rows in reader.read([part]):
                if rows.invalid:
                    raise BadRowsError(first_invalid(rows, part.name, row))
                row += len(rows.counts)
                yield rows
