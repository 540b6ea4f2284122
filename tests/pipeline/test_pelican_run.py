"""Whole runs from a federation, with what can go wrong there: each case with its outcome.

tests/common/pelican asks light servers and XRootD for the same, a request at a time. Here XRootD serves whole runs, odd
names and the rest of a file; what else can happen to a run is the same with light servers.
"""

from __future__ import annotations

import os
import random
import subprocess
import time

import pytest
from federation.federation import Federation
from runs import COUNTING, PATIENCE_S, Process, Processes, settings
from served import (
    FEW_TRIES,
    HASTY,
    ONE_AHEAD,
    ONLY_LIGHT,
    ONLY_REAL,
    Served,
    arguments,
    assert_refused,
    environment,
    problem,
    served,
    start_impatient,
)
from showers import EPOCHS, Showers, Undisturbed

__all__ = ["environment", "served"]


pytestmark = pytest.mark.slow


def test_a_run_from_a_federation_trains_what_one_from_local_files_does(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    processes.train(*arguments(served), environment=environment)
    undisturbed.assert_same_stream(processes)
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
    undisturbed.assert_same_stream(processes)


@ONLY_LIGHT
def test_a_corrupted_byte_is_found_with_the_origins_checksum(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    served.federation.caches[0].fault("corrupt", 10_000, match=served.path)
    processes.train(*arguments(served, *settings("pelican.checksums=origin")), environment=environment)
    undisturbed.assert_same_stream(processes)
    assert "arrived, expected adler32=" in processes.log("fetcher")


@ONLY_LIGHT
def test_a_director_that_is_away_for_a_while_is_waited_for(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    few = [*ONE_AHEAD, *settings("fetcher.disk_budget_gib=0.00044", "pelican.sources_ttl_s=0")]
    director = served.federation.director
    run = start_impatient(processes, arguments(served, *few), environment)
    processes.wait_in(run, lambda: served.gets(), "the first file")
    director.fault("status", 503)
    processes.wait_in(run, lambda: "answered 503" in problem(processes), "the problem to be told")
    served.federation.heal()
    processes.release()
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
    short = settings("pelican.list_timeout_s=2")
    assert_refused(processes, processes.run("run", *arguments(served, *short), environment=environment), told)


@ONLY_LIGHT
def test_a_file_that_is_gone_and_one_of_another_size_are_quarantined_with_every_attempt(
    processes: Processes, served: Served, environment: dict[str, str], showers: Showers
) -> None:
    federation, (gone, other, _) = served.federation, served.names
    real = federation.origin.fault("hang", methods=("PROPFIND",), match=served.path)
    run = processes.start("run", *arguments(served), environment=environment)
    assert real.happened.wait(60)
    sizes = {name: (federation.root / served.path.strip("/") / name).stat().st_size for name in served.names}
    lines = [f"{federation.url(served.path)}/{name}\t{size}" for name, size in sizes.items()]
    (processes.logs / "list.txt").write_text("\n".join(lines))
    run.popen.terminate()
    processes.finish(run)
    federation.heal()
    (federation.root / served.path.strip("/") / gone).unlink()
    federation.put(f"{served.path}/{other}", b"PAR1 but not for long")
    command = ["-i", f"@{processes.logs / 'list.txt'}", *settings(*COUNTING), "--fresh", "--yes"]
    summary = processes.train(*command, environment=environment)
    assert summary.events == {"trained": showers.tables[2].num_rows}
    reasons = {reason.split(": ")[0].rsplit("/", 1)[1]: reason for reason in summary["quarantined"]}
    assert reasons.keys() == {gone, other}
    assert "404" in reasons[gone]
    assert str(sizes[other]) in reasons[other]
    assert all("https://localhost:" in reason for reason in reasons.values()), "what each server said"


@ONLY_REAL
def test_names_of_every_kind_are_trained(
    processes: Processes, served: Served, environment: dict[str, str], showers: Showers
) -> None:
    names = ["with space.parquet", "a,b;c.parquet", "ü-µ-∇.parquet", "a=b&c+d@e.parquet"]
    for name in names:
        served.federation.put(f"{served.path}/{name}", (processes.logs / "served" / served.names[0]).read_bytes())
    summary = processes.train(*served.input, *settings(*COUNTING), environment=environment)
    summary.assert_read(showers.events + len(names) * showers.tables[0].num_rows)


@ONLY_LIGHT
def test_faults_at_random_change_nothing(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    """CHAOS_S: how long the faults go on; more epochs are trained then."""
    seconds = float(os.environ.get("CHAOS_S", "10"))
    epochs = max(EPOCHS, round(seconds / 3))
    few = [*ONE_AHEAD, *settings("fetcher.disk_budget_gib=0.00044", "pelican.sources_ttl_s=1")]
    base = [*served.input, *settings(*COUNTING), *few, *FEW_TRIES, *HASTY, "--epochs", str(epochs)]
    run = start_impatient(processes, base, environment, pause_s=0.02)
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
    processes.release()
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
