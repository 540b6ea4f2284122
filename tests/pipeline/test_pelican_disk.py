"""Whole runs from a federation: what is on disk, lost from it, shared, or too much for it; and ranges of files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from federation.federation import Federation
from runs import COUNTING, Processes, settings
from served import (
    FEW_TRIES,
    ONLY_LIGHT,
    ONLY_REAL,
    Served,
    arguments,
    environment,
    numbers,
    problem,
    served,
    start_impatient,
)
from showers import Showers, Undisturbed

__all__ = ["environment", "served"]


pytestmark = pytest.mark.slow


@ONLY_REAL
def test_a_run_that_is_killed_in_the_middle_of_a_download_resumes_it(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    stall = [server.fault("stall", 30_000, match=served.path) for server in served.federation.caches]
    patient = settings("pelican.read_timeout_s=5")  # what has come is written no later than then
    run = processes.start("run", *arguments(served, *patient), environment=environment)
    cache = processes.run_dir / "cache"
    processes.wait_in(
        run, lambda: any(path.stat().st_size for path in cache.glob("runs/*/parts/*")), "a part of a file"
    )
    assert any(fault.hits for fault in stall)
    processes.kill_all()
    processes.assert_nothing_is_left()
    served.federation.heal()
    served.federation.log.clear()
    processes.train(*arguments(served), environment=environment)
    undisturbed.assert_same_stream(processes)
    assert not list(cache.glob("runs/*/parts/*"))


@ONLY_LIGHT
def test_a_cache_directory_that_is_removed_under_the_run_is_rebuilt(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    run = processes.start_and_reach(5, arguments(served), before=undisturbed.steps, environment=environment)
    shutil.rmtree(processes.run_dir / "cache")
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same_stream(processes)


@ONLY_LIGHT
def test_two_runs_on_one_cache_fetch_each_file_once(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Processes(tmp_path / "other" / "run", tmp_path / "other")
    shared = settings(f"fetcher.cache_dir={tmp_path / 'shared'}")
    try:
        runs = [p.start("run", *arguments(served, *shared), environment=environment) for p in (processes, other)]
        for each, run in zip((processes, other), runs, strict=True):
            assert each.finish(run) == 0, each.report()
            undisturbed.assert_same_stream(each)
        other.assert_nothing_is_left()
    finally:
        other.end()
    assert served.gets() == dict.fromkeys(served.names, 1)
    assert not list((tmp_path / "shared").glob("pool/*/*")), "the last run's end frees the files"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small_disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mount.returncode:
        assert not os.environ.get("CI"), f"CI has to be able to mount a file system: {mount.stderr}"
        pytest.skip(f"can't mount a small file system here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@ONLY_LIGHT
@pytest.mark.root
def test_a_full_disk_pauses_the_run_and_says_so(
    processes: Processes,
    served: Served,
    environment: dict[str, str],
    undisturbed: Undisturbed,
    small_disk: Path,
) -> None:
    (small_disk / "ballast").write_bytes(bytes(1 << 20))
    flags = settings(f"fetcher.cache_dir={small_disk / 'cache'}")
    (small_disk / "ballast").write_bytes(bytes((1 << 20) - 65_536))
    run = start_impatient(processes, arguments(served, *flags), environment)
    processes.wait_in(run, lambda: "the disk is full" in problem(processes), "the pause to be told")
    (small_disk / "ballast").unlink()
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same_stream(processes)


EVENTS_OF_A_RANGE = 20


@ONLY_LIGHT
def test_two_hundred_ranges_of_which_some_are_empty_or_missing(
    processes: Processes, federation: Federation, environment: dict[str, str], showers: Showers, tmp_path: Path
) -> None:
    root = f"/public/ranges{os.getpid()}-{next(numbers)}"
    table = showers.tables[0].slice(0, EVENTS_OF_A_RANGE)
    pq.write_table(table, tmp_path / "one.parquet")
    content = (tmp_path / "one.parquet").read_bytes()
    full = []
    for number in range(200):
        name = f"{1000 * number:07d}-{1000 * number + 999:07d}"
        if number % 10 == 3:
            federation.make_directory(f"{root}/{name}")
        elif number % 10 != 7:
            full.append(name)
            federation.put(f"{root}/{name}/a.parquet", content)
    template = federation.url(f"{root}/{{range}}/*.parquet")
    command = ["-i", template, "--ranges", "0:199000:1000", *settings(*COUNTING), *FEW_TRIES]
    summary = processes.train(*command, environment=environment)
    summary.assert_read(EVENTS_OF_A_RANGE * len(full))
    exit_code, output = processes.run("ranges")
    assert exit_code == 0
    lines = output.splitlines()
    assert sum(" done " in line for line in lines[:-1]) == len(full) == 160
    assert sum(" skipped " in line for line in lines[:-1]) == 40
    assert "no such file or directory" in output
    assert "no file matches" in output


@ONLY_LIGHT
def test_a_range_that_can_not_be_listed_is_tried_again_and_the_place_survives_a_crash(
    processes: Processes, federation: Federation, environment: dict[str, str], showers: Showers, tmp_path: Path
) -> None:
    root = f"/public/ranges{os.getpid()}-{next(numbers)}"
    for index, path in enumerate(showers.write(tmp_path / "ranges")):
        federation.put(f"{root}/{1000 * index:07d}-{1000 * index + 999:07d}/a.parquet", path.read_bytes())
    template = federation.url(f"{root}/{{range}}/*.parquet")
    retry = settings("fetcher.retry_min_s=0.2", "fetcher.retry_max_s=0.5")
    command = ["-i", template, "--ranges", "0:2000:1000", *settings(*COUNTING), *FEW_TRIES, *retry, "--epochs", "2"]
    federation.origin.fault("status", 500, methods=("PROPFIND",), match="0002000")
    run = processes.start("run", *command, environment=environment)
    processes.wait_in(run, lambda: "range 0002000-0002999 can't be listed" in problem(processes), "the failure")
    processes.wait_in(run, lambda: processes.checkpoint_step() >= 15, "the first ranges' training")
    processes.kill_all()
    processes.assert_nothing_is_left()
    assert "0002000-0002999  failed" in processes.run("ranges")[1]
    federation.heal()
    processes.train(*command, environment=environment)
    processes.summary().assert_read(2 * showers.events)
    local = Processes(tmp_path / "local" / "run", tmp_path / "local")
    (tmp_path / "local").mkdir()
    for index, path in enumerate(showers.write(tmp_path / "moved")):
        folder = tmp_path / "by_range" / f"{1000 * index:07d}-{1000 * index + 999:07d}"
        folder.mkdir(parents=True)
        shutil.move(path, folder / "a.parquet")
    same = ["-i", str(tmp_path / "by_range" / "{range}"), *command[2:]]
    local.train(*same)
    assert processes.audit() == local.audit()
