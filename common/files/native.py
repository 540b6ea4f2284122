"""Library in C++ for the decoding of files; numpy and Arrow give the same bytes where it can't be built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.native.library import NativeLibrary, NativeSources

_HERE = Path(__file__).parent
FILES = NativeLibrary(
    NativeSources(
        "files",
        files=(_HERE / "gather.cpp", _HERE / "parquet/plain.cpp", _HERE / "hdf5/span.cpp"),
        headers=(),
        functions={
            "take_rows": "p ll p l p -> l",
            "take_particles": "pp ll p l p l -> l",
            "parse_page_header": "p l p -> l",
            "declared_size": "l p l -> l",
            "read_page": "p ll llll ll pl pl pl p -> l",
            "read_flat_rows": "lll ll plll ppl pp pp -> l",
        },
    ),
    without="decoding of files: numpy and Arrow, slower than C++",
)


def address(array: npt.NDArray[np.generic]) -> int:
    """Address of an array's first number. Keep the array until the call that takes the address has returned."""
    return int(array.__array_interface__["data"][0])
