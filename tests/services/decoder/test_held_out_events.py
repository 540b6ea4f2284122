"""Events held out of training: left out by the decoder before anything else, and counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded_files import decoded
from muon_files import make_event, make_table, write_events

from common.config import SourceConfig, StreamConfig
from common.messages import Part, Tally, Unit
from common.plan import Which, is_held_out
from common.schema import EventSchema
from common.status import OUTLIER_FOLDER
from workloads.muons.columns import MUONS

STREAM = StreamConfig(
    max_particles=100, max_particles_per_event=5, where="muons.count > 0", slot_mib=0.25, held_out=0.4
)
SHOWERS = 20
EVENTS = [
    replace(make_event(10 * shower + bundle, muons), major=shower, minor=0)
    for shower in range(SHOWERS)
    for bundle, muons in enumerate([0, 3, 9])
]
HELD_OUT = set(np.flatnonzero(is_held_out(np.stack([np.arange(SHOWERS), np.zeros(SHOWERS, int)], 1), 0.4)).tolist())


def decode(path: Path, which: Which = "train", schema: EventSchema = MUONS) -> tuple[list[int], Tally]:
    """Showers of the events in the slot, and the counts."""
    unit = Unit(0, 0, 0, 0, (Part(0, str(path), 0, 0, len(EVENTS), 1 << 20, 0),))
    (one,) = decoded([unit], schema, STREAM, path.parent, which)
    assert one.tally.adds_up(one.layout)
    return one.arrays.event_columns["primary_id"][:, 0].tolist(), one.tally


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_events(tmp_path / "f.parquet", EVENTS)


def test_whole_showers_are_held_out_whatever_their_events_are(path: Path) -> None:
    assert 3 < len(HELD_OUT) < 17
    found, tally = decode(path)
    trained = set(range(SHOWERS)) - HELD_OUT
    assert sorted(found) == sorted(trained)
    assert (tally.held_out, tally.outliers, tally.filtered) == (2 * len(HELD_OUT), len(trained), SHOWERS)


def test_held_out_outliers_are_not_written(path: Path) -> None:
    decode(path)
    (written,) = (path.parent / OUTLIER_FOLDER).glob("*.parquet")
    showers = pq.read_table(written)["primary_major_id"].to_pylist()
    assert set(showers) == set(range(SHOWERS)) - HELD_OUT


def test_the_held_out_events_are_read_alone_or_with_all(path: Path) -> None:
    found, tally = decode(path, "held_out")
    assert sorted(found) == sorted(HELD_OUT)
    assert tally.held_out == 2 * (SHOWERS - len(HELD_OUT)), "those that are trained on"
    found, tally = decode(path, "all")
    assert sorted(found) == list(range(SHOWERS))
    assert tally.held_out == 0


def test_a_row_without_an_event_has_no_id_and_is_empty(tmp_path: Path) -> None:
    table = make_table(EVENTS)
    nulls = pa.array([None] * len(EVENTS), table["primary"].type)
    pq.write_table(table.set_column(2, "primary", nulls), tmp_path / "f.parquet")
    nullable = MUONS.stored_as(SourceConfig(nulls="empty"))
    for which in ("train", "held_out"):
        found, tally = decode(tmp_path / "f.parquet", which, schema=nullable)  # type: ignore[arg-type]
        assert (found, tally.empty, tally.held_out) == ([], len(EVENTS), 0)
