"""`inspect` of values that can't be: columns or numbers named in a wrong order train silently."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from muon_files import Event, make_events, write_events

from common.config import SourceConfig
from common.plan_hash import plan_hash
from icestream.commands.inspect.describe import Description, describe
from services.config.root import Config
from workloads.muons.columns import MUONS
from workloads.muons.simulator.config import PRESETS, preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

PRIMARY = ("energy", "zenith", "mass", "depth")
MUON = ("mu_e", "mu_x", "mu_y")


def described(folder: Path, primary: tuple[str, ...] = PRIMARY, muon: tuple[str, ...] = MUON) -> Description:
    """Description of a file with a column for each number, read with these names in this order."""
    events = make_events([0, 3, 5], first=200_000)
    columns = {
        "primary_major_id": [event.major for event in events],
        "primary_minor_id": [event.minor for event in events],
        **{name: [event.primary[i] for event in events] for i, name in enumerate(PRIMARY)},
        **{name: [[one[i] for one in event.muons] for event in events] for i, name in enumerate(MUON)},
    }
    columns["mu_y"] = [[-3.5] * len(event.muons) for event in events]
    pq.write_table(pa.table(columns), folder / "f.parquet")
    schema = MUONS.stored_as(SourceConfig(columns={"primary": primary, "muons": muon}))
    return describe(folder / "f.parquet", "f", schema, num_events=0)


def test_the_right_order_has_no_problem(tmp_path: Path) -> None:
    found = described(tmp_path)
    assert (found.problems, found.particles) == ([], 8)


@pytest.mark.parametrize(
    ("primary", "what"),
    [
        (("zenith", "energy", "mass", "depth"), "3 of 3 of primary.zenith_rad lie outside of 0 to 3.14159, the first"),
        (("energy", "mass", "zenith", "depth"), "3 of 3 of primary.zenith_rad lie outside of 0 to 3.14159, the first"),
        (("energy", "zenith", "depth", "mass"), "3 of 3 of primary.mass_a lie outside of 0 to 300, the first is 1500"),
        (("depth", "zenith", "mass", "energy"), "3 of 3 of primary.depth_m lie outside of 0 to 200000, the first"),
    ],
)
def test_swapped_numbers_of_the_primary_are_a_problem_with_counts(
    tmp_path: Path, primary: tuple[str, ...], what: str
) -> None:
    (problem,) = described(tmp_path, primary).problems
    assert problem.startswith("values that can't be: ")
    assert what in problem
    assert "Check the order of the names in source.columns" in problem


def test_a_muon_s_position_in_the_place_of_its_energy_is_a_problem_and_no_filler(tmp_path: Path) -> None:
    (problem,) = described(tmp_path, muon=("mu_y", "mu_x", "mu_e")).problems
    assert "8 of 8 of muons.energy_gev lie outside of 0 to 1e+13, the first is -3.5" in problem
    assert "8 of 8 of muons.y_m lie outside of -100000 to 100000, the first is 200002" in problem


def test_fillers_are_no_problem_and_dropped_as_in_a_run(tmp_path: Path) -> None:
    filler = Event(1, 1, (1000.0, 0.5, 4.0, 1500.0), ((0.0, 0.0, 0.0),))
    found = describe(write_events(tmp_path / "f.parquet", [*make_events([2]), filler]), "f", MUONS, num_events=0)
    assert (found.problems, found.particles, found.dropped, found.empty) == ([], 2, 1, 1)


@pytest.mark.parametrize("name", list(PRESETS))
def test_no_simulated_event_is_a_problem(tmp_path: Path, name: str) -> None:
    write_dataset(tmp_path, preset(name), DatasetPlan(400, 1, 1))
    (path,) = tmp_path.rglob("*.parquet")
    assert describe(path, "f", MUONS, num_events=0).problems == []


def test_the_plan_of_old_runs_stays_theirs() -> None:
    config = Config()
    hashes = {plan_hash(schema, config.stream, 0) for schema in (config.stored_workload(), replace(MUONS, physical=()))}
    assert len(hashes) == 1
