"""`icestream generate`, from a checkpoint to files that the pipeline reads again."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from decoded_files import decoded, planned
from muon_files import Event, make_events, make_table, write_events
from trained import write_run

from common.config import StreamConfig
from common.errors import BadInputError
from icestream.commands.inspect import describe
from icestream.verbs import FrontDoor
from workloads.muons import generation as write_module
from workloads.muons.columns import MUONS
from workloads.muons.commands import generate
from workloads.muons.generation import METADATA_KEY


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("trained"))


def energetic_events(number: int) -> list[Event]:
    """Some without muons, some with many; numbers that are exact in float32."""
    return [
        replace(event, primary=(1e5 + 1000 * i, 0.5, 4.0, 1500.0)) for i, event in enumerate(make_events([1] * number))
    ]


def run(*arguments: object) -> Result:
    texts = [str(argument) for argument in arguments]
    return CliRunner().invoke(generate, texts, obj=FrontDoor(), catch_exceptions=False)


def test_the_output_is_an_input_with_the_primaries_and_their_ids(run_dir: Path, tmp_path: Path) -> None:
    events = energetic_events(500)
    write_events(tmp_path / "primaries.parquet", events)
    out = tmp_path / "out.parquet"
    result = run(run_dir, tmp_path / "primaries.parquet", "-o", out)
    assert result.exit_code == 0

    workload, stream = MUONS, StreamConfig(shuffle=False)
    (one,) = decoded(planned([out], workload, stream), workload, stream, tmp_path)
    assert not one.tally.bad
    assert one.tally.particles_dropped == 0
    arrays = one.arrays
    assert arrays.event_columns["primary"].tolist() == [list(event.primary) for event in events]
    assert arrays.event_columns["primary_id"].tolist() == [[event.major, event.minor] for event in events]
    counts = np.diff(arrays.offsets)
    assert counts.max() > counts.min()
    assert np.isfinite(arrays.particle_columns["muons"]).all()
    assert f"{len(events):,} events, {counts.sum():,} muons, none capped" in result.output
    assert describe(out, "out", workload, num_events=1).problems == []


def test_each_primary_is_recorded_at_all_depths(run_dir: Path, tmp_path: Path) -> None:
    out, depths = tmp_path / "out.parquet", ("--depth", 2000, "--depth", 1500)
    assert run(run_dir, "--primaries-from", "bench", "--events", 2000, *depths, "-o", out).exit_code == 0
    table = pq.read_table(out)
    counts_SD = np.array(list(map(len, table["muons"].to_pylist()))).reshape(2000, 2)
    assert table["primary_minor_id"].to_numpy().tolist() == np.repeat(np.arange(2000), 2).tolist()
    assert [primary[3] for primary in table["primary"].to_pylist()] == [2000, 1500] * 2000
    assert (counts_SD[:, 0] <= counts_SD[:, 1]).mean() > 0.99


def test_its_own_output_is_an_input_and_counts_may_be_its_muons(run_dir: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    assert run(run_dir, "--primaries-from", "h3a", "--events", 3000, "-o", first).exit_code == 0
    assert run(run_dir, first, "--counts", "column", "--seed", 1, "-o", second).exit_code == 0
    one, two = pq.read_table(first), pq.read_table(second)
    assert one.select(one.column_names[:3]).equals(two.select(one.column_names[:3]))
    assert list(map(len, one["muons"].to_pylist())) == list(map(len, two["muons"].to_pylist()))
    assert not one["muons"].equals(two["muons"])


def test_same_seed_same_bytes_for_one_file_or_many(run_dir: Path, tmp_path: Path) -> None:
    table = make_table(energetic_events(9000))
    whole, folder = tmp_path / "whole.parquet", tmp_path / "parts"
    folder.mkdir()
    pq.write_table(table, whole)
    for i, (first, rows) in enumerate([(0, 100), (100, 8800), (8900, 100)]):
        pq.write_table(table.slice(first, rows), folder / f"{i}.parquet", row_group_size=777)
    outs = [tmp_path / f"{i}.out.parquet" for i in range(3)]
    for inputs, out, seed in zip((whole, folder, whole), outs, (5, 5, 6), strict=True):
        run(run_dir, inputs, "-o", out, "--seed", seed)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert not pq.read_table(outs[0]).equals(pq.read_table(outs[2]))
    told = json.loads(pq.read_schema(outs[0]).metadata[METADATA_KEY.encode()])
    assert told["seed"] == 5
    assert told["step"] == 7


def test_a_directory_gets_files_of_so_many_rows(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "ROW_GROUP_EVENTS", 300)
    whole, folder = tmp_path / "whole.parquet", tmp_path / "many"
    arguments = (run_dir, "--primaries-from", "bench", "--events", 2500, "-o")
    run(*arguments, whole)
    run(*arguments, folder, "--rows-per-file", 1000)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"bundles_000000{i}.parquet" for i in range(3)]
    assert [pq.read_metadata(file).num_rows for file in files] == [1000, 1000, 500]
    assert pa.concat_tables([pq.read_table(file) for file in files]).equals(pq.read_table(whole))

    assert run(*arguments, folder, "--rows-per-file", 2000, "--force").exit_code == 0
    assert [pq.read_metadata(file).num_rows for file in sorted(folder.iterdir())] == [2000, 500]
    with pytest.raises(BadInputError, match="not empty"):
        run(*arguments, folder)
    (folder / "thesis.txt").touch()
    with pytest.raises(BadInputError, match=r"such as thesis\.txt"):
        run(*arguments, folder, "--force")


def test_depths_are_what_they_were_in_training_unless_told(tmp_path: Path) -> None:
    """The column holds metres along the track: read as vertical ones, the events are others."""
    slant_run = write_run(tmp_path / "run", source={"depth_kind": "slant"})
    write_events(tmp_path / "primaries.parquet", energetic_events(300))
    outs = [tmp_path / f"{i}.parquet" for i in range(3)]
    run(slant_run, tmp_path / "primaries.parquet", "-o", outs[0])
    run(slant_run, tmp_path / "primaries.parquet", "-o", outs[1], "--set", "source.depth_kind=slant")
    run(slant_run, tmp_path / "primaries.parquet", "-o", outs[2], "--depth-kind", "vertical")
    same, told, other = (pq.read_table(out) for out in outs)
    assert same.equals(told)
    assert same["primary"].equals(other["primary"])
    assert not same["muons"].equals(other["muons"])


def test_nothing_is_left_of_a_run_that_fails_and_no_event_is_a_file_too(run_dir: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"primary": [[1e5, 0.5, 1.0, 1500.0]] * 9000 + [[-1.0, 0.5, 1.0, 1500.0]]}), tmp_path / "p")
    (tmp_path / "p").rename(tmp_path / "p.parquet")
    with pytest.raises(BadInputError, match=r"p\.parquet: row 9000: energy_gev is -1"):
        run(run_dir, tmp_path / "p.parquet", "-o", tmp_path / "new" / "out.parquet")
    assert list((tmp_path / "new").iterdir()) == []
    write_events(tmp_path / "none.parquet", [])
    result = run(run_dir, tmp_path / "none.parquet", "-o", tmp_path / "out.parquet")
    assert "0 events, 0 muons" in result.output
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 0


def test_nothing_is_left_on_a_full_disk_where_the_footer_cannot_be_written_either(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(pq.ParquetWriter):
        def write_table(self, *_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            super().close()
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write_module, "pq", SimpleNamespace(ParquetWriter=Full))
    with pytest.raises(OSError, match="No space left"):
        run(run_dir, "--primaries-from", "bench", "--events", 5, "-o", tmp_path / "new" / "out.parquet")
    assert list((tmp_path / "new").iterdir()) == []


def test_what_is_there_is_overwritten_only_if_told(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_text("precious")
    arguments = (run_dir, "--primaries-from", "bench", "--events", 5, "-o", out)
    with pytest.raises(BadInputError, match="overwrite it with --force"):
        run(*arguments)
    assert out.read_text() == "precious"
    assert run(*arguments, "--force").exit_code == 0
    with pytest.raises(BadInputError, match="would overwrite"):
        run(run_dir, out, "-o", out, "--force")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no primaries"),
        (("x.parquet", "--primaries-from", "bench", "--events", "5"), "use one of both"),
        (("--primaries-from", "bench"), "belong together"),
        (("--primaries-from", "bench", "--events", "5", "--counts", "column"), "not with --primaries-from"),
        (("x.parquet", "--counts", "constant:-3"), "constant:N"),
        (("--primaries-from", "bench", "--events", "5", "--counts", f"constant:{10**30}"), "at most 1,000,000,000"),
        (("x.parquet", "--counts-column", "n"), "needs --counts column"),
        (("missing.parquet",), "missing.parquet"),
        (("x.parquet", "--depth", "nan"), "expected metres, from 0 on"),
        (("x.parquet", "--depth", "10", "--depth", "10"), "each once"),
        (("x.parquet", "--depth", "10", "--counts", "column"), "not with --depth"),
    ],
)
def test_options_that_make_no_sense_are_told(
    run_dir: Path, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    with pytest.raises(BadInputError, match=told):
        run(run_dir, *arguments, "-o", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
