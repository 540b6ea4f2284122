"""Table of sensors beside imported files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.errors import BadInputError
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, read_geometry, write_geometry


def write_geometry_beside(out: Path, geometry: Geometry) -> None:
    """Write the table into the folder, unless it is there. Raises BadInputError if there is another detector's."""
    path = out / GEOMETRY_FILE
    if not path.exists():
        write_geometry(path, geometry)
    elif not np.array_equal(read_geometry(path).position_S3, geometry.position_S3):
        raise BadInputError(f"{path}: it has other sensors than the files to import; choose another folder")
