"""The positions of the sensors: where training finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from direction_events import GEOMETRY, POSITION_S3

from common.errors import BadInputError
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, write_geometry
from workloads.direction.models.detector import Detector


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    (data / "events-0.parquet").touch()
    write_geometry(data / GEOMETRY_FILE, GEOMETRY)
    return data


def found(*inputs: str, configured: str = "") -> Detector:
    return Detector.found(configured, inputs, "trainer.sets")


@pytest.mark.parametrize(
    "form", ["{}", "{}/events-0.parquet", "{}/*.parquet", "{}/../**/*.parquet", "file://{}", "@{}/list"]
)
def test_it_lies_beside_the_inputs_however_they_are_named(folder: Path, form: str) -> None:
    (folder / "list").write_text(f"{folder}/events-0.parquet\n")
    assert torch.equal(found(form.format(folder)).position_S3, POSITION_S3)


def test_it_lies_beside_files_in_a_folder_of_the_input(folder: Path) -> None:
    assert torch.equal(found(str(folder.parent)).position_S3, POSITION_S3)


def test_the_setting_wins(folder: Path, tmp_path: Path) -> None:
    other = Geometry(GEOMETRY.position_S3 + 1)
    write_geometry(tmp_path / "other.csv", other)
    detector = found(str(folder), configured=str(tmp_path / "other.csv"))
    assert torch.equal(detector.position_S3, POSITION_S3 + 1)


@pytest.mark.parametrize("inputs", [(), ("pelican://host/data",), ("missing",)])
def test_without_any_the_error_tells_what_to_do(inputs: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError, match=r"no sensor_geometry\.csv .* or set trainer\.sets\.geometry to its path"):
        found(*inputs)


def test_a_configured_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.csv"):
        found(configured=str(tmp_path / "none.csv"))


def test_inputs_of_two_detectors_are_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "events-0.parquet").touch()
    write_geometry(other / GEOMETRY_FILE, GEOMETRY)
    assert torch.equal(found(str(folder), str(other)).position_S3, POSITION_S3)
    write_geometry(other / GEOMETRY_FILE, Geometry(GEOMETRY.position_S3 * 2))
    with pytest.raises(BadInputError, match="train on the files of one detector"):
        found(str(folder), str(other))
