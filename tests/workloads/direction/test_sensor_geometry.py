from pathlib import Path

import numpy as np
import pytest

from common.errors import BadInputError
from workloads.direction import geometry
from workloads.direction.geometry import (
    GEOMETRY_FILE,
    MEDIA,
    Geometry,
    hex_geometry,
    icecube_geometry,
    read_geometry,
    write_geometry,
)


def table(folder: Path, text: str | bytes) -> Path:
    path = folder / GEOMETRY_FILE
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_toy_detector_has_91_strings_of_60_sensors() -> None:
    position_S3 = hex_geometry().position_S3
    strings = position_S3.reshape(91, 60, 3)
    assert position_S3.dtype == np.float32
    assert np.all(strings[:, :, :2] == strings[:, :1, :2])
    np.testing.assert_allclose(np.diff(strings[:, :, 2], axis=1), -17.0)
    distance = np.linalg.norm(strings[:, None, 0, :2] - strings[None, :, 0, :2], axis=2)
    np.testing.assert_allclose(np.sort(distance, axis=1)[:, 1], 125.0, rtol=1e-5)
    np.testing.assert_allclose(position_S3[:, :2].mean(axis=0), 0.0, atol=1e-3)
    assert np.abs(position_S3).max() == 625.0


def test_the_sensors_of_icecube_are_those_of_the_contests_table() -> None:
    position_S3 = icecube_geometry().position_S3
    spacing_m = np.diff(position_S3.reshape(86, 60, 3), axis=1)
    np.testing.assert_allclose(position_S3[0], [-256.14, -521.08, 496.03], atol=0.01)
    np.testing.assert_allclose(position_S3[5159], [-10.97, 6.72, -500.73], atol=0.01)
    assert np.median(spacing_m[:78], axis=1)[:, 2].max() < -16.0
    assert np.median(spacing_m[78:], axis=1)[:, 2].min() > -7.1


@pytest.mark.parametrize(("medium", "columns"), [("ice", "x,y,z"), ("water", "x,y,z,medium")])
def test_a_written_table_is_read_back_bit_for_bit(tmp_path: Path, medium: str, columns: str) -> None:
    rng = np.random.default_rng(0)
    written = Geometry(rng.normal(0, 300, (50, 3)).astype(np.float32), MEDIA[medium])
    write_geometry(tmp_path / GEOMETRY_FILE, written)
    assert (tmp_path / GEOMETRY_FILE).read_text().startswith(f"sensor_id,{columns}\n0,")
    assert read_geometry(tmp_path / GEOMETRY_FILE).is_like(written)


def test_rows_may_come_in_any_order_with_any_line_ends(tmp_path: Path) -> None:
    path = table(tmp_path, b"\xef\xbb\xbfsensor_id,x,y,z\r\n1,4,5,6\r\n\r\n0,1,2,3e0")
    assert read_geometry(path).position_S3.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Empty CSV file.*expected the table of sensors, sensor_id,x,y,z"),
        ("id,x,y,z\n0,1,2,3\n", "first line is 'id,x,y,z'; expected sensor_id,x,y,z"),
        ("sensor_id,x,y,z\n", "0 sensors"),
        ("sensor_id,x,y,z\n0,1,2\n", "Row #2: Expected 4 columns, got 3"),
        ("sensor_id,x,y,z\n0,1,2,3\n1.5,1,2,3\n", "Row #3: CSV conversion error to int64: invalid value '1.5'"),
        ("sensor_id,x,y,z\n0,1,2,nan\n", "sensor 0 is at .* expected metres"),
        ("sensor_id,x,y,z\n0,1,2,3\n0,1,2,3\n", "2 sensors, whose ids are not 0 to 1, each once"),
        ("sensor_id,x,y,z\n-1,1,2,3\n", "1 sensors, whose ids are not 0 to 0, each once"),
        ("sensor_id,x,y,z,medium\n0,1,2,3,air\n", "its medium is 'air'; expected the same in each row, ice or water"),
        ("sensor_id,x,y,z,medium\n0,1,2,3,ice\n1,1,2,9,water\n", "its medium is 'ice, water'; expected the same"),
        (b"sensor_id,x,y,z\n\xff\xfe\n", "can't be read"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(BadInputError, match=f"{GEOMETRY_FILE}.*{message}"):
        read_geometry(table(tmp_path, text))


def test_a_table_that_is_missing_or_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match=r"No such file.*expected the table of sensors"):
        read_geometry(tmp_path / GEOMETRY_FILE)
    monkeypatch.setattr(geometry, "MOST_BYTES", 20)
    with pytest.raises(BadInputError, match="larger than 20 bytes"):
        read_geometry(table(tmp_path, "sensor_id,x,y,z\n0,1,2,3\n"))
