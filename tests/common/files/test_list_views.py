"""List views: lists that may overlap and come in any order, read as the lists that they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events, make_table

from common.files.parquet.arrow_file import ArrowFile, without_views
from workloads.muons.columns import MUONS
from workloads.muons.generation.primaries import WantedCounts, primaries_of_table, read_primaries

NUMBER = pa.int32()
VIEW = pa.list_view(NUMBER)
KINDS = (
    *(VIEW, pa.large_list_view(NUMBER), pa.list_view(VIEW), pa.large_list(VIEW), pa.list_(VIEW, 2)),
    *(pa.large_list_view(pa.list_(NUMBER, 2)), pa.struct([("a", VIEW), ("b", NUMBER)])),
    pa.list_view(pa.struct([("a", VIEW), ("b", NUMBER)])),
)


def shown(array: pa.Array) -> pa.Array:
    """The array as it is read: checked, and without views."""
    batch = without_views(pa.RecordBatch.from_arrays([array], names=["x"]))
    batch.validate(full=True)
    assert "view" not in str(batch.schema)
    return batch.column(0)


@st.composite
def values(draw: st.DrawFn, kind: pa.DataType) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return None
    if pa.types.is_struct(kind):
        return {field.name: draw(values(field.type)) for field in kind}
    if pa.types.is_fixed_size_list(kind):
        return [draw(values(kind.value_type)) for _ in range(kind.list_size)]
    if not pa.types.is_nested(kind):
        return draw(st.integers(0, 9))
    return [draw(values(kind.value_type)) for _ in range(draw(st.integers(0, 3)))]


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 8))
def test_views_at_any_depth_are_the_lists_that_they_show(
    data: st.DataObject, kind: pa.DataType, first: int, num: int
) -> None:
    array = pa.array([data.draw(values(kind)) for _ in range(8)], kind)
    for part in (array, array.slice(first, num), pa.concat_arrays([array.slice(first), array])):
        assert shown(part).to_pylist() == part.to_pylist()


def test_views_that_overlap_or_come_in_another_order_are_the_lists_that_they_show() -> None:
    starts, sizes = pa.array([2, 0, 1, 0, 1], pa.int32()), pa.array([1, 2, 2, 0, 2], pa.int32())
    null = pa.array([False, False, False, False, True])
    views = pa.ListViewArray.from_arrays(starts, sizes, pa.array([1, 2, 3], NUMBER), mask=null)
    assert shown(views).to_pylist() == [[3], [1, 2], [2, 3], [], None]
    assert shown(views[2:]).to_pylist() == [[2, 3], [], None]


@pytest.mark.parametrize("kind", ["list_view", "large_list_view"])
def test_a_file_of_list_views_is_read_like_one_of_lists_also_for_its_primaries(tmp_path: Path, kind: str) -> None:
    events = make_events([2, 0, 3])
    table, views = make_table(events), make_table(events, list_of=getattr(pa, kind))
    pq.write_table(views, tmp_path / "f.parquet")
    with ArrowFile(tmp_path / "f.parquet") as file:
        assert pa.Table.from_batches(file.iter_batches()).to_pylist() == table.to_pylist()
    wanted = WantedCounts("muons")
    for found in (
        primaries_of_table(views, "t", MUONS, wanted),
        read_primaries(tmp_path / "f.parquet", "f", 0, MUONS, wanted),
    ):
        (one,) = found
        assert one.counts_E is not None
        assert one.counts_E.tolist() == [2, 0, 3]
