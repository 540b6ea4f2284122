"""Events of an evaluation: all of them, from files of every kind, with the weights of their rows; drawn once more."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdf5_files import write_hdf5
from muon_files import Event, make_events, make_table, write_events
from trained import make_sampler

from common.config import SourceConfig
from common.errors import BadInputError
from common.files.remotes import Remotes
from common.plan import SourceFile
from icestream.reading import trained_on
from icestream.verbs import FrontDoor
from services.config.root import Config
from workloads.base.checkpoint import TrainedRun
from workloads.base.report.evaluation import Origin
from workloads.muons import generation
from workloads.muons.evaluation import (
    EvaluationRequest,
    Redraw,
    drawn_again,
    drawn_sample,
    generated_events,
    natural_weights,
    real_events,
)
from workloads.muons.metrics.bundles import Sample
from workloads.muons.models.config import LikelihoodConfig
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import sample_depths, sample_primaries, simulate_showers


@dataclass(frozen=True)
class RealEvents:
    sample: Sample
    about: Origin
    redraws: list[Redraw]


def read(*inputs: Path | str, weights: str | None = None, redraws: Any = (), **config: Any) -> RealEvents:
    """Events of files, as of a run with this configuration that was trained on no file."""
    run = TrainedRun(Path("x"), 1, 1, "wgan", {}, (), SourceConfig(), 0.0, json.dumps(config))
    names = tuple(map(str, inputs))
    wanted = EvaluationRequest(checkpoint=Path("x"), inputs=names, weights=weights, redraws=redraws, events=0)
    return RealEvents(*real_events(FrontDoor(), wanted, [SimpleNamespace(run=run)], lambda text: None))  # type: ignore[list-item]


def numbers(found: RealEvents) -> list[int]:
    """Which events these are: see muon_files.make_event."""
    return (np.round(found.sample.primary_E4[:, 0]) - 1000).astype(int).tolist()


def test_files_of_every_kind_are_read_together_each_event_with_its_muons(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    counts = [0, 2, 1, 0, 5, 3]
    write_events(tmp_path / "folder" / "a.parquet", make_events(counts))
    write_hdf5(tmp_path / "b.h5", make_events(counts, first=6))
    large = make_table(make_events(counts, first=12), list_of=pa.large_list, number=pa.float64())
    pq.write_table(large, tmp_path / "c.parquet")
    found = read(tmp_path / "folder", f"{tmp_path}/*.h5", f"file://{tmp_path}/c.parquet")
    assert sorted(numbers(found)) == list(range(18))
    assert found.sample.bundles.counts_E.tolist() == [counts[number % 6] for number in numbers(found)]
    owners = np.repeat(numbers(found), found.sample.bundles.counts_E)
    assert np.array_equal(found.sample.bundles.energy_gev_P, 1.0 + owners)
    assert np.array_equal(found.sample.bundles.y_m_P, -1.0 * owners)
    assert found.about.notes[0] == "3 of 3 files were read"


def test_rows_with_the_same_ids_are_of_one_shower(tmp_path: Path) -> None:
    events = [
        Event(major, minor, (1000.0 + number, 0.5, 4.0, 1500.0), ())
        for number, (major, minor) in enumerate([(1, 1), (1, 2), (2, 1), (1, 1), (2, 1), (1, 1)])
    ]
    found = read(write_events(tmp_path / "a.parquet", events))
    shower = dict(zip(numbers(found), found.sample.shower_E.tolist(), strict=True))
    assert shower[0] == shower[3] == shower[5]
    assert shower[2] == shower[4]
    assert len({shower[0], shower[1], shower[2]}) == 3


def test_each_event_gets_the_weight_of_its_own_row(tmp_path: Path) -> None:
    for index in range(2):
        table = make_table(make_events([1] * 50, first=50 * index))
        weights = np.arange(50 * index, 50 * index + 50, dtype=np.float32) + 1
        pq.write_table(table.append_column("w", pa.array(weights)), tmp_path / f"{index}.parquet", row_group_size=7)
    found = read(tmp_path, weights="w")
    assert found.sample.weight_E is not None
    assert found.sample.weight_E.tolist() == [number + 1 for number in numbers(found)]


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("missing", [1.0, 1.0], "a.parquet: no column 'missing' for the weights; it has primary_major_id"),
        ("w", [1.0, -1.0], "a.parquet: the column 'w' holds a weight that is negative, null or not finite"),
        ("w", [1.0, None], "negative, null or not finite"),
        ("w", [0.0, 0.0], "all of them are 0"),
        ("w", ["a", "b"], "has type string; weights are numbers"),
    ],
)
def test_weights_that_are_none_are_refused(tmp_path: Path, column: str, values: list[Any], reason: str) -> None:
    table = make_table(make_events([1, 1])).append_column("w", pa.array(values))
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(BadInputError, match=reason):
        read(tmp_path, weights=column)


def drawn(counts: list[int], draw: int) -> list[Event]:
    """Events 0, 1, ... with other muons."""
    return [
        replace(event, muons=((9.0, float(draw), 0.0),) * count) for event, count in zip(EVENTS, counts, strict=True)
    ]


EVENTS = make_events([0, 2, 1])


def test_redraws_are_the_rows_of_other_files_with_the_same_ids_and_primaries_in_order(tmp_path: Path) -> None:
    real = write_events(tmp_path / "real.parquet", EVENTS)
    other_depth = replace(EVENTS[1], primary=(*EVENTS[1].primary[:3], 1600.0), muons=((9.0, 7.0, 0.0),))
    first = [*drawn([1, 5, 0], 1)[::-1], other_depth, *make_events([3], first=8)]
    write_events(tmp_path / "a.parquet", first, row_group_rows=2)
    write_hdf5(tmp_path / "b.h5", [*drawn([3, 0, 2], 2), *drawn([4, 4, 4], 3)[1:]])
    found = read(real, redraws=[tmp_path / "a.parquet", tmp_path / "b.h5"])
    assert len(found.redraws) == 2, "no third one of event 0"
    for draw, counts in enumerate(([1, 5, 0], [3, 0, 2]), 1):
        bundles = found.redraws[draw - 1]()
        assert bundles.counts_E.tolist() == [counts[number] for number in numbers(found)]
        assert (bundles.x_m_P == draw).all()


def test_events_that_share_a_primary_take_turns_at_its_redraws(tmp_path: Path) -> None:
    real = write_events(tmp_path / "real.parquet", [EVENTS[1], *drawn([0, 1, 0], 0)[1:2]])
    again = [event for draw in range(1, 6) for event in drawn([0, 1, 0], draw)[1:2]]
    found = read(real, redraws=str(write_events(tmp_path / "again.parquet", again)))
    assert [redraw().x_m_P.tolist() for redraw in found.redraws] == [[1.0, 2.0], [3.0, 4.0]]


def test_files_without_two_redraws_of_each_event_or_with_the_events_themselves_are_refused(tmp_path: Path) -> None:
    real = write_events(tmp_path / "real.parquet", EVENTS)
    again = write_events(tmp_path / "again.parquet", [*drawn([1, 1, 1], 1), *drawn([1, 1, 1], 2)[1:]])
    with pytest.raises(
        BadInputError, match=r"1 of its rows has the ids 0, 0 and the primary \(E 1000 GeV, zenith 0.5, "
    ):
        read(real, redraws=again)
    with pytest.raises(BadInputError, match="among its files are those of -i"):
        read(real, redraws=[again, real])
    with pytest.raises(BadInputError, match="either --redraws, or the simulator draws"):
        EvaluationRequest(checkpoint=Path("x"), inputs=("x",), redraws=("y",), simulated="bench")


def test_files_that_were_trained_on_are_known_local_remote_or_of_a_list(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    used = write_events(tmp_path / "data" / "used.parquet", make_events([1]))
    other = write_events(tmp_path / "other.parquet", make_events([1]))
    (tmp_path / "link.parquet").symlink_to(used)
    listed = tmp_path / "inputs.txt"
    listed.write_text("# what it was trained on\nhttps://host/a/x.parquet\t12\tadler32=00000001\n\n")
    seen = [str(tmp_path / "link.parquet"), "pelican://host/a/0000-0999/x.parquet", "https://host/b/y.parquet"]
    seen += ["https://host/a/x.parquet"]
    sources = [SourceFile(one, 1) for one in (str(other), *seen, "pelican://host/c/z.parquet", "https://host/a/y.h5")]
    inputs = [f"{tmp_path}/{{range}}/*.parquet", "pelican://host/a/{range}/*.parquet", "https://host/b"]
    trained = Config.model_validate({"input": [*inputs, f"@{listed}", f"@{tmp_path}/no-more-there.txt"]})
    with Remotes(trained.remote_access()) as remotes:
        assert trained_on(sources, trained.input, remotes) == seen


def test_remote_files_are_fetched_and_leave_nothing_behind(tmp_path: Path) -> None:
    import fsspec

    write_events(tmp_path / "a.parquet", make_events([1, 0, 3]))
    with fsspec.open("memory://far/a.parquet", "wb") as remote:
        remote.write((tmp_path / "a.parquet").read_bytes())
    cache = tmp_path / "cache"
    found = read("memory://far/*.parquet", fetcher={"cache_dir": str(cache)})
    assert sorted(numbers(found)) == [0, 1, 2]
    assert found.sample.bundles.counts_E.sum() == 4
    sizes = [path.stat().st_size for path in cache.rglob("*") if path.is_file()]
    assert max(sizes, default=0) < 500, "locks may stay, the file may not"
    assert sorted(numbers(read("memory://far/a.parquet"))) == [0, 1, 2], "into a temporary directory"


BENCH = preset("bench")


def test_both_draws_have_the_same_mean_and_are_independent() -> None:
    sample = drawn_sample(BENCH, 10_000, seed=1)
    again = drawn_again(sample.primary_E4, sample.shower_E, BENCH, seed=1)
    once, twice = sample.bundles.counts_E, again.counts_E
    assert len(once) == len(twice) == 10_000
    assert abs(once.mean() - twice.mean()) < 5 * np.std(once - twice) / np.sqrt(10_000)
    busy = once + twice > 4
    assert 0 < (once == twice)[busy].mean() < 0.3, "a second draw is another one"
    # The count follows the primary, so that both go together over events.
    assert np.corrcoef(np.log1p(once), np.log1p(twice))[0, 1] > 0.7


def test_rows_of_a_shower_are_drawn_as_a_shower_in_whatever_order_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    few = replace(BENCH, depth_steps=5)
    rows = simulate_showers(sample_primaries(400, few, rng), sample_depths(400, 5, few, rng), few, rng)
    order = rng.permutation(2000)[:1500]
    primary_E4 = rows.primary_E4[order].astype(np.float64)
    shower_E = np.repeat(np.arange(400), 5)[order]
    again = drawn_again(primary_E4, shower_E, BENCH, seed=3)
    assert (again.counts_E != rows.counts_E[order]).any()
    for shower in range(400):
        of_shower = np.flatnonzero(shower_E == shower)
        deeper = of_shower[np.argsort(primary_E4[of_shower, 3])]
        assert (np.diff(again.counts_E[deeper]) <= 0).all(), "a muon that is gone does not come back"
    means = [again.counts_E[primary_E4[:, 3] == depth].mean() for depth in np.unique(primary_E4[:, 3])]
    expected = [rows.counts_E[order][primary_E4[:, 3] == depth].mean() for depth in np.unique(primary_E4[:, 3])]
    assert np.allclose(means, expected, rtol=0.5)
    assert again.energy_gev_P.min() >= BENCH.energy_cut_gev
    monkeypatch.setattr(generation, "CHUNK_EVENTS", 100)
    sampler = make_sampler(LikelihoodConfig(), count_steps=100)
    generated, _ = generated_events(sampler, Sample(primary_E4, shower_E, again), 0)
    deeper = np.lexsort((primary_E4[:, 3], shower_E))
    assert (np.diff(generated.counts_E[deeper]) <= 0)[np.diff(shower_E[deeper]) == 0].mean() > 0.99


def test_natural_weights_turn_the_bench_spectrum_into_the_natural_one() -> None:
    flux = preset("h3a", energy_min_gev=BENCH.energy_min_gev, energy_max_gev=BENCH.energy_max_gev)
    made, natural = drawn_sample(BENCH, 40_000, seed=1).primary_E4, drawn_sample(flux, 40_000, seed=2).primary_E4
    weight_E = natural_weights(made, BENCH)
    assert weight_E.mean() == pytest.approx(1.0)
    assert np.average(np.log10(made[:, 0]), weights=weight_E) == pytest.approx(np.log10(natural[:, 0]).mean(), abs=0.01)
    for mass in (1.0, 4.0, 14.0, 27.0, 56.0):
        share = weight_E[made[:, 2] == mass].sum() / len(made)
        assert share == pytest.approx((natural[:, 2] == mass).mean(), abs=0.02)
    assert (natural_weights(natural, flux) == 1.0).all()
    made[:, 2] = 5.0
    with pytest.raises(BadInputError, match="no natural flux"):
        natural_weights(made, BENCH)
