"""Small HDF5 files of the muons' flat tables, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from muon_files import Event


def tables_of(
    events: Sequence[Event], *, dtype: str = "<f4", fillers: bool = True, count_dtype: str = "<i4"
) -> dict[str, np.ndarray]:
    """The events as the converter writes them: one without muons gets a muon of zeros, if ``fillers``."""
    width = len(events[0].primary) if events else 4
    of_muon = next((len(muon) for event in events for muon in event.muons), 3)
    filler = [(0.0,) * (2 + of_muon)] if fillers else []
    rows = [[(event.major, event.minor, *muon) for muon in event.muons] or filler for event in events]
    return {
        "primaries": np.array([(e.major, e.minor, *e.primary) for e in events], dtype).reshape(-1, 2 + width),
        "muons": np.array([row for of_event in rows for row in of_event], dtype).reshape(-1, 2 + of_muon),
        "counts": np.array([len(of_event) for of_event in rows], count_dtype),
    }


def write_tables(path: Path, tables: dict[str, np.ndarray], *, chunk_rows: int = 0, **options: Any) -> Path:
    """Write the tables, in chunks of so many rows or each as one piece; ``options`` go to every dataset."""
    version = options.pop("libver", "earliest")
    with h5py.File(path, "w", libver=version) as file:
        for name, values in tables.items():
            chunked = {"chunks": (chunk_rows, *values.shape[1:]), "maxshape": (None, *values.shape[1:])}
            file.create_dataset(name, data=values, **(chunked if chunk_rows else {}), **options)
    return path


def write_hdf5(path: Path, events: Sequence[Event], *, chunk_rows: int = 0, **options: Any) -> Path:
    """Write the events in the converter's layout."""
    return write_tables(path, tables_of(events), chunk_rows=chunk_rows, **options)
