"""Which files primaries are read from, and what is said of those they can't be read from."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdf5_files import write_hdf5
from muon_files import make_events, make_table, write_events

from common.config import SourceConfig
from common.errors import BadInputError
from workloads.muons.columns import MUONS
from workloads.muons.primaries import Primaries, read_primaries

EVENTS = make_events([2, 0, 5])
PRIMARY = [list(event.primary) for event in EVENTS]
IDS = [[event.major, event.minor] for event in EVENTS]
PLAIN = SourceConfig()


def read(path: Path, wanted: str | None = None, source: SourceConfig = PLAIN, number: int = 0) -> Primaries:
    return Primaries.joined(list(read_primaries(path, str(path), number, MUONS.stored_as(source), wanted)))


def write(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(dict(columns)), path, **options)
    return path


def test_a_production_file_gives_its_ids_and_primaries_with_or_without_muons(tmp_path: Path) -> None:
    table = make_table(EVENTS)
    for name, columns in (("all", table.column_names), ("no-muons", table.column_names[:3])):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table.select(columns), path, row_group_size=2)
        primaries = read(path)
        assert primaries.ids_E2.tolist() == IDS
        assert primaries.primary_E4.tolist() == PRIMARY
        assert primaries.counts_E is None


def test_an_hdf5_file_gives_them_and_its_counts(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.h5", EVENTS)
    primaries = read(path, "")
    assert primaries.ids_E2.tolist() == IDS
    assert primaries.primary_E4.tolist() == PRIMARY
    assert primaries.counts_E is not None
    assert primaries.counts_E.tolist() == [2, 0, 5]


@pytest.mark.parametrize("dtype", [pa.float32(), pa.int32()])
def test_numbers_of_a_primary_may_be_columns(tmp_path: Path, dtype: pa.DataType) -> None:
    columns = {
        name: pa.array([int(row[i]) for row in PRIMARY], dtype)
        for i, name in enumerate(("energy_gev", "zenith_rad", "mass_a", "depth_m"))
    }
    path = write(tmp_path / "f.parquet", {"weight": pa.array([1.0, 1, 1]), **columns}, row_group_size=2)
    assert read(path, number=4).ids_E2.tolist() == [[4, 0], [4, 1], [4, 2]], "file and row, where there are no ids"
    assert read(path).primary_E4.tolist() == [[float(int(number)) for number in row] for row in PRIMARY]


def test_lists_with_other_numbers_are_read_by_the_names_of_these(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", {"primary": [[1e5, 0.25, 4.0, 77.0, 1500.0]]})
    names = ("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m")
    assert read(path, source=SourceConfig(fields={"primary": names})).primary_E4.tolist() == [[1e5, 0.25, 4.0, 1500.0]]
    with pytest.raises(
        BadInputError, match=r"f\.parquet: column 'primary', row 0: .*expected 4 .*names of the 5 numbers"
    ):
        read(path)


@pytest.mark.parametrize(
    ("columns", "wanted", "expected"),
    [
        ({"num_muons": [3, 1, 0]}, "", [3, 1, 0]),
        ({"n": pa.array([3.0, 1.0, 0.0])}, "n", [3, 1, 0]),
        ({"hits": [[1.0], [], [1.0, 2.0]]}, "hits", [1, 0, 2]),
    ],
)
def test_counts_come_from_a_column(tmp_path: Path, columns: dict[str, Any], wanted: str, expected: list[int]) -> None:
    path = write(tmp_path / "f.parquet", {"primary": PRIMARY, **columns})
    counts_E = read(path, wanted).counts_E
    assert counts_E is not None
    assert counts_E.tolist() == expected


BAD = [
    ({"primary": [*PRIMARY[:2], [float("nan"), 0.5, 4.0, 1500.0]]}, "row 2: energy_gev is nan; expected a finite"),
    (
        {"primary": [PRIMARY[0], [1e5, -0.5, 4.0, 1500.0]]},
        "row 1: zenith_rad is -0.5; expected a finite number of at le",
    ),
    ({"primary": [PRIMARY[0], [1e5, 0.5, 4.0]]}, "column 'primary', row 1: primary has lists of 3 numbers; expected 4"),
    ({"primary": [PRIMARY[0], None]}, "column 'primary', row 1: the value is null"),
    ({"primary": [PRIMARY[0], [1e5, None, 4.0, 1.0]]}, "column 'primary', row 1: a number is null"),
    ({"primary": [["a", "b", "c", "d"]]}, "expected lists of numbers"),
    ({"primary": ["a"]}, "column 'primary' is string; expected lists of numbers"),
    ({"energy_gev": [1e5], "zenith_rad": [0.5]}, "mass_a, depth_m missing"),
    ({"energy_gev": ["x"], "zenith_rad": [0.5], "mass_a": [1.0], "depth_m": [1.0]}, "column 'energy_gev' is string"),
    (
        {"primary": PRIMARY, "primary_major_id": [1, 2, -3], "primary_minor_id": [1, 2, 3]},
        "row 2: -3; expected a whole",
    ),
]


@pytest.mark.parametrize(("columns", "told"), BAD)
def test_what_is_wrong_is_told_with_file_and_row(tmp_path: Path, columns: dict[str, Any], told: str) -> None:
    path = write(tmp_path / "bad.parquet", columns)
    with pytest.raises(BadInputError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert told in str(raised.value)


def test_an_absurd_count_stays_one(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", {"primary": PRIMARY, "n": pa.array([2**63 + 5, 1, 2], pa.uint64())})
    counts_E = read(path, "n").counts_E
    assert counts_E is not None
    assert counts_E[0] > 2**61
    assert counts_E[1:].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "told"), [("n", "row 1: 1.5; expected a whole number"), ("gone", "no column 'gone'"), ("", "'muons' or")]
)
def test_bad_counts_are_told(tmp_path: Path, column: str, told: str) -> None:
    path = write(tmp_path / "f.parquet", {"primary": PRIMARY, "n": [1.0, 1.5, 2.0]})
    with pytest.raises(BadInputError, match=told):
        read(path, column)


def test_a_file_that_is_truncated_or_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_events(tmp_path / "f.parquet", EVENTS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInputError, match=r"f\.parquet"):
        read(path)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    write(path, {"primary": PRIMARY})
    monkeypatch.setattr(pq, "read_schema", refused)  # root may read everything
    with pytest.raises(BadInputError, match=r"f\.parquet: can't be read \(Permission denied\)"):
        read(path)
