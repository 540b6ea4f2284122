"""Real showers, from a library of SIBYLL's interactions that is small, and made here."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from common.errors import BadInputError
from workloads.muons.evaluation import drawn_again
from workloads.muons.showers import interactions
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import SimulatedPrimaries, sample_primaries, simulate, simulate_showers
from workloads.muons.simulator.write import read_provenance, simulate_dataset
from workloads.muons.simulator.write import simulate as command

pytestmark = pytest.mark.engine
SIBYLL = preset("sibyll")


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory):
    """Library of 1 % of the interactions, in the place of the whole one."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        place = cache / "icestream" / "showers" / "sibyll23d-0.11.0-1-v3"
        place.parent.mkdir(parents=True, mode=0o700)
        interactions.make_library(place, interactions.LibraryName(), 0.01)
        interactions.library_of.cache_clear()
        yield interactions.Library(place)
        interactions.library_of.cache_clear()


def fixed(num, energy_gev, mass):
    return SimulatedPrimaries(*(np.full(num, value) for value in (energy_gev, mass, 0.87, 1950.0)))


def test_secondaries_of_an_interaction_have_at_most_its_energy_and_mostly_a_large_part_of_it(library):
    rng = np.random.default_rng(1)
    energy_gev = np.full(4000, 1e6)
    for row in (0, 2):
        parent, pid, secondary_gev, px_gev, _ = library.interact(np.full(4000, row), energy_gev, rng)
        share = np.bincount(parent, secondary_gev, 4000) / 1e6
        assert share.max() < 1.001, "as the cells' energies are scaled, so are those of the secondaries"
        assert 0.5 < share.mean() < 0.9, "photons, of neutral pions, have the rest"
        assert secondary_gev.min() > interactions.KEPT_ABOVE_GEV * 0.88
        assert 0.2 < np.median(np.abs(px_gev)) < 0.4
        assert set(np.unique(np.abs(pid))) >= {211, 321, 130, 2212, 2112}
    lengths = library.length_gcm2(np.arange(len(interactions.PROJECTILES)), np.full(len(interactions.PROJECTILES), 5.0))
    assert lengths[0] == pytest.approx(76, abs=4), "protons in air at 100 TeV, g/cm²"
    assert (lengths[2:7] > lengths[0]).all(), "mesons are smaller"


def test_a_nucleus_is_its_wounded_nucleons_and_its_fragments(library):
    mass = np.repeat([4, 14, 27, 56], 500)
    wounded, nucleus, size = library.break_up(mass, mass * 1e5, np.random.default_rng(2))
    assert (wounded + np.bincount(nucleus, size, len(mass)) == mass).all()
    # At each interaction of a nucleus as many nucleons are wounded as free ones would interact on the way to it.
    lengths = library.nuclear_length_gcm2(mass, np.full(len(mass), 5.0))
    free = library.length_gcm2(np.array([0]), np.array([5.0]))[0]
    for each in (4, 56):
        chosen = mass == each
        assert wounded[chosen].mean() == pytest.approx(each * lengths[chosen][0] / free, rel=0.2)
    assert 10 < lengths[-1] < 16, "iron in air at 100 TeV a nucleon, g/cm²"


def test_mean_numbers_of_muons_are_as_measured_and_spread_more_than_poissons():
    """benchmarks/results/2026-11-29-showers.md, with the error of a hundredth of the library. Elbert: 4.8, 9.5, 50."""
    rng = np.random.default_rng(3)
    for energy_gev, mass, mean, fano in ((1e6, 1.0, 5.3, 1.9), (1e6, 56.0, 10.7, 1.6), (1e7, 14.0, 57.0, 3.5)):
        counts = simulate(fixed(1500, energy_gev, mass), SIBYLL, rng).counts_E
        assert counts.mean() == pytest.approx(mean, rel=0.12)
        assert counts.var() / counts.mean() == pytest.approx(fano, rel=0.25)


def test_rows_of_a_shower_lose_muons_with_depth_and_are_strongly_correlated():
    rng = np.random.default_rng(4)
    depths = np.tile([1500.0, 2400.0, np.inf], (800, 1))
    counts = simulate_showers(fixed(800, 1e7, 1.0), depths, SIBYLL, rng).counts_E.reshape(800, 2)
    assert (counts[:, 1] <= counts[:, 0]).all()
    assert counts[:, 1].mean() / counts[:, 0].mean() == pytest.approx(0.33, abs=0.05)
    assert np.corrcoef(counts.T)[0, 1] > 0.85


def test_the_same_command_makes_the_same_bytes_goes_on_where_it_stopped_and_says_what_it_made(tmp_path, monkeypatch):
    arguments = {"events": 900, "files": 3, "seed": 5, "preset": "sibyll", "showers": 3}
    simulate_dataset(tmp_path / "one", **arguments)
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        simulate_dataset(tmp_path / "alone", **arguments)
    alone = {file.name: file.read_bytes() for file in (tmp_path / "alone").rglob("*.parquet")}
    files = sorted((tmp_path / "one").rglob("*.parquet"))
    whole = {file.name: file.read_bytes() for file in files}
    assert alone == whole, "in one process"
    files[1].rename(files[1].with_name(files[1].name + ".part"))
    kept = files[0].stat().st_mtime_ns
    assert simulate_dataset(tmp_path / "one", **arguments).num_files == 1
    assert {file.name: file.read_bytes() for file in files} == whole
    assert files[0].stat().st_mtime_ns == kept
    assert len(pq.read_table(files[0])) == 300
    found = read_provenance(files[2])
    expected = {"interactions": "sibyll23d", "chromo": "0.11.0", "library": 1, "seed": 5, "file": 2, "field": False}
    assert found.items() >= expected.items()
    files[0].write_bytes(b"PAR1, or not")
    for changed in ({}, {"seed": 6}, {"energy": (3e4, 1e7)}):
        with pytest.raises(BadInputError, match="not empty"):
            simulate_dataset(tmp_path / "one", **(arguments | changed))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--preset", "sibyll", "--energy", "1e5", "1.01e8"], "1e\\+08 GeV"),
        (["--preset", "bench", "--field"], "--preset sibyll"),
        (["--preset", "bench", "--energy", "1e6", "1e5"], "energy = 1e"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, options, reason):
    arguments = [str(tmp_path / "out"), "--events", "2000", "--files", "1", *options]
    with pytest.raises(BadInputError, match=reason):
        CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_redraws_have_the_same_primaries_and_other_muons():
    rng = np.random.default_rng(8)
    rows = simulate(sample_primaries(1500, SIBYLL, rng), SIBYLL, rng)
    again = drawn_again(rows.primary_E4.astype(np.float64), np.arange(1500), SIBYLL, seed=1)
    busy = rows.counts_E + again.counts_E > 4
    assert 0 < (rows.counts_E == again.counts_E)[busy].mean() < 0.3
    assert np.corrcoef(np.log1p(rows.counts_E), np.log1p(again.counts_E))[0, 1] > 0.7
    assert (again.counts_E.sum() / rows.counts_E.sum()) == pytest.approx(1.0, abs=0.15)
