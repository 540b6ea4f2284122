"""Events of an evaluation: all of them, from files of every kind, with the weights of their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdf5_files import write_hdf5
from muon_files import Event, make_events, make_table, write_events

from common.errors import BadInputError
from common.files.remotes import Remotes
from common.plan import SourceFile
from icestream.front import FrontDoor
from icestream.reading.staging import trained_on
from services.config.root import Config
from workloads.muons.evaluation.read import RealEvents, read_real


def read(*inputs: Path | str, events: int = 0, seed: int = 0, weights: str = "", **settings: Any) -> RealEvents:
    front = FrontDoor()
    names = [str(one) for one in inputs]
    of_files = front.file_settings(names, toml=None, assignments=(), config_json=json.dumps(settings))
    return read_real(front, of_files, events=events, seed=seed, trained_inputs=(), weights=weights)


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
    assert found.num_files == 3


def test_an_event_above_the_runs_limit_is_in_the_evaluation(tmp_path: Path) -> None:
    path = write_events(tmp_path / "a.parquet", make_events([1, 70_000, 2]))
    found = read(path, stream={"max_particles": 100, "max_particles_per_event": 50, "drop_empty": True})
    assert sorted(found.sample.bundles.counts_E.tolist()) == [1, 2, 70_000]
    assert found.notes == ()


def test_some_events_come_from_all_over_the_files_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for index in range(4):
        events = make_events([1] * 100, first=100 * index)
        write_events(tmp_path / f"{index}.parquet", events, row_group_rows=25)
    found = read(tmp_path, events=40)
    assert len(found.sample) == len(set(numbers(found))) == 40
    assert {number // 100 for number in numbers(found)} == {0, 1, 2, 3}
    assert numbers(read(tmp_path, events=40)) == numbers(found)
    assert numbers(read(tmp_path, events=40, seed=1)) != numbers(found)
    assert sorted(numbers(read(tmp_path, events=1000))) == list(range(400))


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


def test_local_files_need_no_cache_directory(tmp_path: Path) -> None:
    path = write_events(tmp_path / "a.parquet", make_events([1]))
    assert len(read(path, fetcher={"cache_dir": "/proc/not/here"}).sample) == 1


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadInputError, match=r"a\.parquet: "):
        read(tmp_path)


def test_files_that_were_trained_on_are_known_local_or_remote(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    used = write_events(tmp_path / "data" / "used.parquet", make_events([1]))
    other = write_events(tmp_path / "other.parquet", make_events([1]))
    (tmp_path / "link.parquet").symlink_to(used)
    urls = ["pelican://host/a/0000-0999/x.parquet", "https://host/b/y.parquet", "pelican://host/c/z.parquet"]
    sources = [SourceFile(str(one), 1) for one in (tmp_path / "link.parquet", other, *urls)]
    inputs = [f"{tmp_path}/{{range}}/*.parquet", "pelican://host/a/{range}/*.parquet", "https://host/b"]
    trained = Config.model_validate({"input": inputs})
    with Remotes(trained.remote_access()) as remotes:
        found = trained_on(sources, trained.input, remotes)
    assert found == [str(tmp_path / "link.parquet"), urls[0], urls[1]]


def test_files_of_a_list_that_was_trained_on_are_known(tmp_path: Path) -> None:
    used = write_events(tmp_path / "used.parquet", make_events([1]))
    listed = tmp_path / "inputs.txt"
    listed.write_text(f"# what it was trained on\n{used}\nhttps://host/a/x.parquet\t12\tadler32=00000001\n\n")
    urls = ["https://host/a/x.parquet", "https://host/a/y.parquet"]
    sources = [SourceFile(str(one), 1) for one in (used, *urls)]
    trained = Config.model_validate({"input": [f"@{listed}", f"@{tmp_path}/no-more-there.txt"]})
    with Remotes(trained.remote_access()) as remotes:
        assert trained_on(sources, trained.input, remotes) == [str(used), urls[0]]


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
