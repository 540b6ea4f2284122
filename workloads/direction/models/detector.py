"""Positions of the sensors as a part of a model: found beside the inputs, kept in checkpoints."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from common.errors import BadInputError
from common.files.inputs import named_inputs
from common.files.local_listing import files_below, files_matching
from common.user_path import user_path
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, read_geometry

_SAME_PLACE_M = 0.02
"""Largest distance of two notes of one sensor's position, as for importers."""


class Detector(nn.Module):
    """Sensor positions, (S, 3) float32 in m: a buffer, no weights."""

    position_S3: Tensor

    def __init__(self, position_S3: Tensor) -> None:
        super().__init__()
        self.register_buffer("position_S3", position_S3)

    @classmethod
    def found(cls, configured: str, inputs: Sequence[str], section: str) -> Detector:
        """Detector of the file ``configured``, else of the GEOMETRY_FILE beside the local ones of the run's inputs.

        ``section``: of the setting `geometry`, for messages. Raises BadInputError if there is none, if it can't be
        read, or if the inputs have different ones.
        """
        if configured:
            return cls.of(read_geometry(user_path(configured)))
        places = list(dict.fromkeys(_beside(inputs)))
        if not places:
            raise BadInputError(
                f"no {GEOMETRY_FILE} (positions of the sensors) beside the run's local inputs"
                f" ({', '.join(inputs)[:300] or 'none'}): copy it there, or set {section}.geometry to its path"
            )
        first, *others = (read_geometry(place) for place in places)
        for place, other in zip(places[1:], others, strict=True):
            if not np.array_equal(first.position_S3, other.position_S3):
                raise BadInputError(f"{places[0]} and {place} differ: train on the files of one detector")
        return cls.of(first)

    @classmethod
    def of(cls, geometry: Geometry) -> Detector:
        """Detector with the sensors of a geometry."""
        return cls(torch.from_numpy(geometry.position_S3.copy()))

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Detector:
        """Detector of a checkpoint, from its state_dict(). Raises KeyError if it is none."""
        return cls(state["position_S3"])


def check_same_detector(position_S3: Tensor, inputs: Sequence[str]) -> None:
    """Check that the GEOMETRY_FILEs beside local inputs, if there are any, are of a model's sensors.

    Raises BadInputError: predictions of another detector's events would be wrong without any other sign of it.
    """
    ours_S3 = position_S3.cpu().numpy()
    for place in dict.fromkeys(_beside(inputs)):
        theirs_S3 = read_geometry(place).position_S3
        if theirs_S3.shape != ours_S3.shape or not np.allclose(theirs_S3, ours_S3, rtol=0, atol=_SAME_PLACE_M):
            raise BadInputError(
                f"{place}: its {len(theirs_S3)} sensors are not those of the {len(ours_S3)} that the model was trained"
                " with, by number and place: use events of its detector, or import them again with its geometry"
                f" ({GEOMETRY_FILE}) beside the files"
            )


def _beside(inputs: Iterable[str]) -> Iterator[Path]:
    """Geometry files in the folders of the files of local inputs."""
    for text in named_inputs(inputs):
        local = text.removeprefix("file://")
        if "://" in local:
            continue
        path = user_path(local).absolute()
        for folder in dict.fromkeys(_folders(path)):
            if (found := folder / GEOMETRY_FILE).is_file():
                yield found


def _folders(path: Path) -> Iterator[Path]:
    """Folders of the files of an input."""
    if path.is_dir():
        yield path
        yield from (file.parent for file in files_below(path))
    elif path.exists() or not glob.has_magic(str(path)):
        yield path.parent
    else:
        yield from (file.parent for file in files_matching(path))
