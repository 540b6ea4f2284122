"""Whole runs from a federation, with what can go wrong there: each case with its outcome.

tests/common/pelican asks light servers and XRootD for the same, a request at a time. Here XRootD serves whole runs, odd
names and the rest of a file; what else can happen to a run is the same with light servers.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from faulty_services import AGAIN_VARIABLE
from federation.federation import Federation
from runs import PATIENCE_S, SMALL_STREAM, Process, Processes, settings
from showers import EPOCHS, Showers, Undisturbed

pytestmark = pytest.mark.slow

_numbers = itertools.count()

QUICK = settings(
    "pelican.connect_timeout_s=2", "pelican.read_timeout_s=1", "pelican.list_timeout_s=2", "pelican.list_tries=2"
)
ONLY_LIGHT = pytest.mark.parametrize("started_federation", ["light"], indirect=True)
"""For what XRootD shows in other tests, here or in tests/common/pelican."""
ONE_AHEAD = settings("stream.block_files=1", "fetcher.blocks_ahead=1")


class Served:
    """The showers in a folder of the federation of their own: caches keep what they have seen."""

    def __init__(self, federation: Federation, showers: Showers, folder: Path, namespace: str = "/public") -> None:
        self.federation = federation
        self.path = f"{namespace}/showers{os.getpid()}-{next(_numbers)}"
        self.names = [path.name for path in showers.write(folder)]
        for name in self.names:
            federation.put(f"{self.path}/{name}", (folder / name).read_bytes())
        federation.log.clear()

    @property
    def input(self) -> list[str]:
        return ["-i", self.federation.url(f"{self.path}/*.parquet")]

    def gets(self) -> Counter[str]:
        """Files that were asked for, by name: whole ones."""
        found = Counter()
        for entry in list(self.federation.log):
            if entry["method"] == "GET" and str(entry["server"]).startswith("cache") and self.path in entry["path"]:
                found[entry["path"].rsplit("/", 1)[1]] += entry["status"] == 200
        return found


@pytest.fixture
def environment(federation: Federation) -> dict[str, str]:
    wanted = federation.environment()
    return wanted | {name: "" for name in os.environ if name not in wanted}


@pytest.fixture
def served(federation: Federation, showers: Showers, tmp_path: Path) -> Served:
    return Served(federation, showers, tmp_path / "served")


def arguments(served: Served, *more: str) -> list[str]:
    return [*served.input, *settings(*SMALL_STREAM), "--epochs", str(EPOCHS), *QUICK, *more]


def start_impatient(processes: Processes, command: list[str], environment: dict[str, str]) -> Process:
    """`icestream run` that soon tries again what may pass."""
    return processes.start("run", *command, environment=environment | {AGAIN_VARIABLE: "0.5"})


def problem(processes: Processes) -> str:
    """What the fetcher says keeps it from going on."""
    return processes.fetcher.problem


def test_a_run_from_a_federation_trains_what_one_from_local_files_does(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    processes.train(*arguments(served), environment=environment)
    undisturbed.assert_same(processes)
    assert served.gets() == dict.fromkeys(served.names, 1), "kept for the next epochs"
    listings = [
        entry for entry in served.federation.log if entry["method"] == "PROPFIND" and entry["server"] == "origin"
    ]
    assert len(listings) == 1


@ONLY_LIGHT
@pytest.mark.parametrize(("kind", "value"), [("status", 404), ("reset", 20_000)])
def test_a_cache_that_always_fails_does_not_keep_the_run_from_its_end(
    processes: Processes,
    served: Served,
    environment: dict[str, str],
    undisturbed: Undisturbed,
    kind: str,
    value: float,
) -> None:
    """An answer that would be believed of every source, and a file of which a part is there; the other kinds of
    failures in test_pelican_download.py, and at random below."""
    fault = served.federation.caches[0].fault(kind, value, match=served.path)
    processes.train(*arguments(served), environment=environment)
    assert fault.hits
    undisturbed.assert_same(processes)


@ONLY_LIGHT
def test_a_corrupted_byte_is_found_with_the_origins_checksum(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    served.federation.caches[0].fault("corrupt", 10_000, match=served.path)
    processes.train(*arguments(served, *settings("pelican.checksums=origin")), environment=environment)
    undisturbed.assert_same(processes)
    assert "arrived, expected adler32=" in processes.log("fetcher")


@ONLY_LIGHT
def test_a_director_that_is_away_for_a_while_is_waited_for(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    few = [*ONE_AHEAD, *settings("fetcher.disk_budget_gib=0.0004", "pelican.sources_ttl_s=0")]
    director = served.federation.director
    run = start_impatient(processes, arguments(served, *few), environment)
    processes.wait_in(run, lambda: served.gets(), "the first file")
    director.fault("status", 503)
    processes.wait_in(run, lambda: "answered 503" in problem(processes), "the problem to be told")
    served.federation.heal()
    assert processes.finish(run) == 0, processes.report()
    processes.summary().assert_read(EPOCHS * 6_000)


@ONLY_LIGHT
def test_a_wrong_discovery_ends_the_start_with_guidance(
    processes: Processes, served: Served, environment: dict[str, str]
) -> None:
    served.federation.director.fault("html", match="pelican-configuration")
    assert_refused(processes, processes.run("run", *arguments(served), environment=environment), "names no director")


@ONLY_LIGHT
def test_a_listing_that_hangs_ends_the_start_with_guidance(
    processes: Processes, served: Served, environment: dict[str, str]
) -> None:
    served.federation.origin.fault("hang", methods=("PROPFIND",))
    told = "the listing can't be reached within 2 s"
    assert_refused(processes, processes.run("run", *arguments(served), environment=environment), told)


def assert_refused(processes: Processes, outcome: tuple[int, str], told: str) -> None:
    exit_code, output = outcome
    assert exit_code == 2, output
    assert told in output
    assert "Traceback" not in output + processes.log("fetcher") + processes.log("trainer")


# ------------------------------------------------------------------ tokens


@pytest.fixture
def private(federation: Federation, showers: Showers, tmp_path: Path) -> Served:
    return Served(federation, showers, tmp_path / "private", "/icecube/wipac/sim")


SCOPE = "storage.read:/sim"


@ONLY_LIGHT
@pytest.mark.parametrize(
    ("scope", "ttl", "told"),
    [(None, 0, "no token"), (SCOPE, -100, "expired"), ("storage.read:/elsewhere", 600, "storage.read:/sim")],
)
def test_a_token_that_will_not_do_ends_the_start_with_guidance(
    processes: Processes,
    private: Served,
    environment: dict[str, str],
    tmp_path: Path,
    scope: str | None,
    ttl: int,
    told: str,
) -> None:
    token = private.federation.issuer.mint(scope or "", ttl=ttl)
    flags = token_flags(tmp_path, token) if scope else []
    outcome = processes.run("run", *arguments(private, *flags), environment=environment)
    assert_refused(processes, outcome, told)
    assert_nowhere(processes, token)


@ONLY_LIGHT
def test_a_token_is_renewed_in_mid_run_and_never_told(
    processes: Processes,
    private: Served,
    environment: dict[str, str],
    undisturbed: Undisturbed,
    tmp_path: Path,
) -> None:
    mint = private.federation.issuer.mint
    first, last = mint(SCOPE, ttl=3600), mint(SCOPE, ttl=3601)
    for cache in private.federation.caches:  # until a token has expired
        cache.fault("status", 503, match=private.path)
    flags = [*token_flags(tmp_path, first), *settings("token.margin_s=0")]
    run = start_impatient(processes, arguments(private, *flags), environment)
    processes.wait_in(run, lambda: "503" in problem(processes), "the caches' failing")
    second = mint(SCOPE, ttl=3)
    token_flags(tmp_path, second)
    processes.wait_in(run, lambda: "expired" in problem(processes), "the pause to be told")
    private.federation.heal()
    token_flags(tmp_path, last)
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same(processes)
    assert not processes.summary()["quarantined"]
    for token in (first, second, last):
        assert_nowhere(processes, token)
    assert all(token not in str(entry["query"]) for token in (first, second, last) for entry in private.federation.log)


def token_flags(folder: Path, token: str) -> list[str]:
    part = folder / "token.part"
    part.touch(0o600)
    part.write_text(token + "\n")
    part.replace(folder / "token")
    return ["--token-file", str(folder / "token")]


def assert_nowhere(processes: Processes, token: str) -> None:
    """Neither the token nor its signature is in an output, a file or its name."""
    secrets = [token.encode(), token.rpartition(".")[2].encode()]
    for path in [*(process.output_path for process in processes.started), *processes.run_dir.rglob("*")]:
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret in content or secret in str(path).encode() for secret in secrets), path


# ------------------------------------------------------------------ files that change


@ONLY_LIGHT
def test_a_file_that_is_gone_and_one_of_another_size_are_quarantined_with_every_attempt(
    processes: Processes, served: Served, environment: dict[str, str], showers: Showers
) -> None:
    federation, (gone, other, _) = served.federation, served.names
    real = federation.origin.fault("hang", methods=("PROPFIND",), match=served.path)
    run = processes.start("run", *arguments(served, "--set", "pelican.list_timeout_s=60"), environment=environment)
    assert real.happened.wait(60)
    sizes = {name: (federation.root / served.path.strip("/") / name).stat().st_size for name in served.names}
    lines = [f"{federation.url(served.path)}/{name}\t{size}" for name, size in sizes.items()]
    (processes.logs / "list.txt").write_text("\n".join(lines))
    run.popen.terminate()
    processes.finish(run)
    federation.heal()
    (federation.root / served.path.strip("/") / gone).unlink()
    federation.put(f"{served.path}/{other}", b"PAR1 but not for long")
    command = ["-i", f"@{processes.logs / 'list.txt'}", *settings(*SMALL_STREAM), *QUICK, "--fresh", "--yes"]
    summary = processes.train(*command, environment=environment)
    assert summary.events == {"trained": showers.tables[2].num_rows}
    reasons = {reason.split(": ")[0].rsplit("/", 1)[1]: reason for reason in summary["quarantined"]}
    assert reasons.keys() == {gone, other}
    assert "404" in reasons[gone]
    assert str(sizes[other]) in reasons[other]
    assert all("https://localhost:" in reason for reason in reasons.values()), "what each server said"


def test_names_of_every_kind_are_trained(
    processes: Processes, served: Served, environment: dict[str, str], showers: Showers
) -> None:
    names = ["with space.parquet", "a,b;c.parquet", "ü-µ-∇.parquet", "a=b&c+d@e.parquet"]
    for name in names:
        served.federation.put(f"{served.path}/{name}", (processes.logs / "served" / served.names[0]).read_bytes())
    summary = processes.train(*served.input, *settings(*SMALL_STREAM), *QUICK, environment=environment)
    summary.assert_read(showers.events + len(names) * showers.tables[0].num_rows)


# ------------------------------------------------------------------ disk


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
    undisturbed.assert_same(processes)
    assert not list(cache.glob("runs/*/parts/*"))


@ONLY_LIGHT
def test_a_cache_directory_that_is_removed_under_the_run_is_rebuilt(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    run = processes.start_and_reach(5, arguments(served), before=undisturbed.steps, environment=environment)
    shutil.rmtree(processes.run_dir / "cache")
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same(processes)


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
            undisturbed.assert_same(each)
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
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same(processes)


# ------------------------------------------------------------------ ranges

EVENTS_OF_A_RANGE = 20


@ONLY_LIGHT
def test_two_hundred_ranges_of_which_some_are_empty_or_missing(
    processes: Processes, federation: Federation, environment: dict[str, str], showers: Showers, tmp_path: Path
) -> None:
    root = f"/public/ranges{os.getpid()}-{next(_numbers)}"
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
    command = ["-i", template, "--ranges", "0:199000:1000", *settings(*SMALL_STREAM), *QUICK]
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
    root = f"/public/ranges{os.getpid()}-{next(_numbers)}"
    for index, path in enumerate(showers.write(tmp_path / "ranges")):
        federation.put(f"{root}/{1000 * index:07d}-{1000 * index + 999:07d}/a.parquet", path.read_bytes())
    template = federation.url(f"{root}/{{range}}/*.parquet")
    retry = settings("fetcher.retry_min_s=0.2", "fetcher.retry_max_s=0.5")
    command = ["-i", template, "--ranges", "0:2000:1000", *settings(*SMALL_STREAM), *QUICK, *retry, "--epochs", "2"]
    federation.origin.fault("status", 500, methods=("PROPFIND",), match="0002000")
    run = processes.start("run", *command, environment=environment)
    processes.wait_in(run, lambda: "range 0002000-0002999 can't be listed" in problem(processes), "the failure")
    processes.wait_in(run, lambda: processes.checkpoint_step() >= 20, "the first ranges' training")
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


# ------------------------------------------------------------------ everything at once


@ONLY_LIGHT
def test_faults_at_random_change_nothing(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    """CHAOS_S: how long the faults go on; more epochs are trained then."""
    seconds = float(os.environ.get("CHAOS_S", "10"))
    epochs = max(EPOCHS, round(seconds / 3))
    few = [*ONE_AHEAD, *settings("fetcher.disk_budget_gib=0.0004", "pelican.sources_ttl_s=1")]
    base = [*served.input, *settings(*SMALL_STREAM), *few, *QUICK, "--epochs", str(epochs)]
    run = start_impatient(processes, base, environment)
    rng = random.Random(4)
    kinds = [("status", 404), ("status", 500), ("status", 403), ("hang", 0), ("reset", 9_000), ("short", 9_000)]
    kinds += [("disconnect", 0), ("stall", 9_000), ("lie", 9_000)]
    processes.wait_in(run, lambda: served.gets(), "the first file")
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not run.ended():
        pick_faults(served.federation, rng, kinds)
        wait_a_little(run, rng.uniform(0.2, 1.5))
        served.federation.heal()
    served.federation.heal()
    run.popen.wait(PATIENCE_S + seconds)
    assert processes.finish(run) == 0, processes.report()
    local = Processes(processes.logs / "local" / "run", processes.logs / "local")
    (processes.logs / "local").mkdir()
    again = local.start("run", "-i", str(processes.logs / "served"), *base[2:])
    again.popen.wait(PATIENCE_S + seconds)
    assert local.finish(again) == 0, local.report()
    assert processes.audit() == local.audit()
    assert processes.summary().events == local.summary().events


def pick_faults(federation: Federation, rng: random.Random, kinds: list[tuple[str, int]]) -> None:
    """One cache, at least, stays whole: what every source says for good is believed."""
    bad = rng.choice(federation.caches)
    for kind, value in rng.sample(kinds, 2):
        bad.fault(kind, value, chance=rng.uniform(0.3, 1.0), seed=rng.randrange(100))
    if rng.random() < 0.3:
        federation.director.fault("status", 503)


def wait_a_little(run: Process, seconds: float) -> None:
    """For the run to meet the faults; nothing depends on how long it is."""
    try:
        run.popen.wait(seconds)
    except subprocess.TimeoutExpired:
        return
