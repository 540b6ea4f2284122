from __future__ import annotations

import pyarrow as pa
import pytest

from common.errors import BadInputError
from icestream.commands.outliers.schema import common_schema, common_type

EITHER_WAY = [
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.int32(), pa.int64(), pa.int64()),
    (pa.uint32(), pa.uint64(), pa.uint64()),
    (pa.uint32(), pa.int64(), pa.int64()),
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.null(), pa.float32(), pa.float32()),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
    (pa.list_(pa.field("element", pa.float32())), pa.list_(pa.float64()), pa.list_(pa.float64())),
    (pa.list_(pa.list_(pa.float32())), pa.large_list(pa.list_(pa.float32())), pa.large_list(pa.list_(pa.float32()))),
    (pa.uint64(), pa.int64(), None),
    (pa.int32(), pa.float64(), None),
    (pa.string(), pa.int64(), None),
    (pa.list_(pa.float32()), pa.float32(), None),
    (pa.list_(pa.string()), pa.list_(pa.float32()), None),
]


@pytest.mark.parametrize(("one", "other", "both"), EITHER_WAY)
def test_a_type_is_widened_only_where_no_value_changes(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    assert common_type(one, other) == both
    assert common_type(other, one) == both


def test_columns_of_all_files_in_order_of_appearance() -> None:
    a = pa.schema([("x", pa.float32()), ("y", pa.int64())])
    b = pa.schema([("extra", pa.int8()), ("x", pa.float64())])
    assert common_schema([("a", a), ("b", b)]) == pa.schema(
        [("x", pa.float64()), ("y", pa.int64()), ("extra", pa.int8())]
    )


def test_types_that_do_not_go_together_are_told_with_column_and_both_files() -> None:
    with pytest.raises(BadInputError, match=r"b\.parquet: column 'x' has type string, but float in a\.parquet"):
        common_schema([("a.parquet", pa.schema([("x", pa.float32())])), ("b.parquet", pa.schema([("x", pa.string())]))])
