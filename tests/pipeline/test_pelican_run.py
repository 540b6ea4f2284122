"""Whole runs from and to a federation: what goes wrong there, tokens, disks, ranges, and copies of the outputs.

tests/common/pelican asks light servers and XRootD for the same, a request at a time. What can happen to a whole run is
the same with light servers, which stand in for XRootD where it isn't installed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import jwt
import pytest
from faulty_services import AGAIN_VARIABLE, SILENCE_VARIABLE
from federation.federation import Federation
from federation.xrootd import available
from runs import COUNTING, Process, Processes, kill, settings
from showers import EPOCHS, Showers, Undisturbed, undisturbed_run

from common.paths import cache_folder

pytestmark = pytest.mark.slow

numbers = itertools.count()

HASTY = {SILENCE_VARIABLE: "1"}
"""For servers that hang. A busy machine may be as slow as they are: then a file is asked for once more."""
ONLY_REAL = pytest.mark.parametrize(
    "started_federation",
    ["xrootd" if available() or os.environ.get("REQUIRE_XROOTD") == "1" else "light"],
    indirect=True,
)
"""For what light servers show in other tests; they stand in where XRootD isn't installed."""
ONE_AHEAD = settings("stream.block_files=1", "fetcher.blocks_ahead=1")


class Served:
    """The showers in a folder of the federation of their own: caches keep what they have seen."""

    def __init__(self, federation: Federation, showers: Showers, folder: Path, namespace: str = "/public") -> None:
        self.federation = federation
        self.path = f"{namespace}/showers{os.getpid()}-{next(numbers)}"
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
    # Without the cache of this machine each run would compile the libraries in C++, which takes longer than itself.
    wanted = federation.environment() | {"XDG_CACHE_HOME": str(cache_folder(os.environ).parent)}
    return wanted | {name: "" for name in os.environ if name not in wanted}


@pytest.fixture
def served(federation: Federation, showers: Showers, tmp_path: Path) -> Served:
    return Served(federation, showers, tmp_path / "served")


def arguments(served: Served, *more: str) -> list[str]:
    return [*served.input, *settings(*COUNTING), "--epochs", str(EPOCHS), *more]


def start_impatient(
    processes: Processes, command: list[str], environment: dict[str, str], pause_s: float = 0.2
) -> Process:
    """`icestream run` that soon tries again what may pass, with a brake: who only counts is at the end in a moment."""
    brake = processes.brake(pause_s=pause_s)
    return processes.start("run", *command, environment=environment | brake | {AGAIN_VARIABLE: "0.5"})


def problem(processes: Processes) -> str:
    """What the fetcher says keeps it from going on."""
    return processes.fetcher.problem


def test_a_run_from_a_federation_trains_what_one_from_local_files_does(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    processes.train(*arguments(served), environment=environment)
    undisturbed.assert_same_stream(processes)
    assert served.gets() == dict.fromkeys(served.names, 1), "kept for the next epochs"
    asked = [(entry["method"], entry["server"]) for entry in served.federation.log]
    assert asked.count(("PROPFIND", "origin")) == 1


def test_faults_at_random_change_nothing(processes: Processes, served: Served, environment: dict[str, str]) -> None:
    few = [*ONE_AHEAD, *settings("fetcher.disk_budget_gib=0.00044")]
    command = arguments(served, *few)
    run = start_impatient(processes, command, environment | HASTY)
    rng = random.Random(4)
    kinds = [("status", 404), ("status", 500), ("status", 403), ("hang", 0), ("reset", 9_000), ("short", 9_000)]
    kinds += [("disconnect", 0), ("stall", 9_000), ("lie", 9_000)]
    processes.wait_in(run, lambda: served.gets(), "the first file")
    for _ in range(5):
        pick_faults(served.federation, rng, kinds)
        wait_a_little(run, rng.uniform(0.2, 1.5))
        served.federation.heal()
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    local = undisturbed_run(processes.logs / "local", ["-i", str(processes.logs / "served"), *command[2:]])
    assert processes.audit() == local.audit
    assert processes.summary().events == local.summary.events


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


@pytest.fixture
def private(federation: Federation, showers: Showers, tmp_path: Path) -> Served:
    return Served(federation, showers, tmp_path / "private", "/icecube/wipac/sim")


SCOPE = "storage.read:/sim"


def test_a_token_is_renewed_in_mid_run_and_never_told(
    processes: Processes, private: Served, environment: dict[str, str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    mint = private.federation.issuer.mint
    first, last = mint(SCOPE, ttl=3600), mint(SCOPE, ttl=3601)
    for cache in private.federation.caches:  # until a token has expired
        cache.fault("status", 503, match=private.path)
    run = start_impatient(processes, arguments(private, *token_flags(tmp_path, first)), environment)
    processes.wait_in(run, lambda: "503" in problem(processes), "the caches' failing")
    second = mint(SCOPE, ttl=3)
    token_flags(tmp_path, second)
    processes.wait_in(run, lambda: "expired" in problem(processes), "the pause to be told")
    private.federation.heal()
    token_flags(tmp_path, last)
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same_stream(processes)
    expires_s = jwt.decode(last, options={"verify_signature": False})["exp"]
    assert processes.fetcher.token_expires_s == expires_s, "status and /metrics tell the end of the token in use"
    assert not processes.summary()["quarantined"]
    processes.assert_nowhere(*(text for token in (first, second, last) for text in (token, token.rpartition(".")[2])))
    assert all(token not in str(entry["query"]) for token in (first, second, last) for entry in private.federation.log)


def token_flags(folder: Path, token: str) -> list[str]:
    part = folder / "token.part"
    part.touch(0o600)
    part.write_text(token + "\n")
    part.replace(folder / "token")
    return ["--token-file", str(folder / "token")]


@ONLY_REAL
def test_a_run_that_is_killed_in_the_middle_of_a_download_resumes_it(
    processes: Processes, served: Served, environment: dict[str, str], undisturbed: Undisturbed
) -> None:
    stall = [server.fault("stall", 30_000, match=served.path) for server in served.federation.caches]
    short = {SILENCE_VARIABLE: "5"}  # what has come is written no later than then
    run = processes.start("run", *arguments(served), environment=environment | short)
    cache = processes.run_dir / "cache"
    processes.wait_in(run, lambda: any(path.stat().st_size for path in cache.glob("*/parts/*")), "a part of a file")
    assert any(fault.hits for fault in stall)
    processes.kill_all()
    processes.assert_nothing_is_left()
    served.federation.heal()
    served.federation.log.clear()
    processes.train(*arguments(served), environment=environment)
    undisturbed.assert_same_stream(processes)
    assert not list(cache.glob("*/parts/*"))


def test_ranges_that_are_empty_missing_or_can_not_be_listed_and_the_place_survives_a_crash(
    processes: Processes, federation: Federation, environment: dict[str, str], showers: Showers, tmp_path: Path
) -> None:
    root = f"/public/ranges{os.getpid()}-{next(numbers)}"
    paths = iter(showers.write(tmp_path / "ranges"))
    for number in (0, 1, 2, 4):
        name = f"{1000 * number:07d}-{1000 * number + 999:07d}"
        if number == 1:
            federation.make_directory(f"{root}/{name}")
        else:
            federation.put(f"{root}/{name}/a.parquet", next(paths).read_bytes())
    template = federation.url(f"{root}/{{range}}/*.parquet")
    command = ["-i", template, "--ranges", "0:4000:1000", *settings(*COUNTING), "--epochs", "2"]
    federation.origin.fault("status", 500, methods=("PROPFIND",), match="0004000")
    run = processes.start("run", *command, environment=environment)
    processes.wait_in(run, lambda: "range 0004000-0004999 can't be listed" in problem(processes), "the failure")
    processes.wait_in(run, lambda: processes.checkpoint_step() >= 15, "the first ranges' training")
    processes.kill_all()
    processes.assert_nothing_is_left()
    assert "0004000-0004999  failed" in processes.run("ranges")[1]
    federation.heal()
    processes.train(*command, environment=environment)
    processes.summary().assert_read(2 * showers.events)
    assert len(set(processes.audit())) == len(processes.audit())
    exit_code, output = processes.run("ranges")
    assert exit_code == 0
    lines = output.splitlines()[:-1]
    assert (sum(" done " in line for line in lines), sum(" skipped " in line for line in lines)) == (3, 2)
    assert "no such file or directory" in output
    assert "no file matches" in output


# ------------------------------------------------------------------ outputs that are copied there


def test_a_killed_copier_comes_back_and_a_run_goes_on_from_checkpoints_that_were_brought_back(
    processes: Processes,
    federation: Federation,
    environment: dict[str, str],
    command: list[str],
    undisturbed: Undisturbed,
    tmp_path: Path,
) -> None:
    token = federation.issuer.mint("storage.read:/ storage.create:/ storage.modify:/")
    environment |= {"ICESTREAM_TOKEN__FILE": token_flags(tmp_path, token)[1]}
    place = f"/private/outputs-{os.getpid()}-{federation.kind}"
    flags = [*command, *settings(f"outputs.destination={federation.url(place)}", "outputs.every_s=0.2")]
    folder = federation.root / place.strip("/")

    def copied() -> list[str]:
        try:
            files = json.loads((folder / "icestream-outputs.json").read_text())["files"]
        except (FileNotFoundError, ValueError):
            return []
        return [name for name in files if name.startswith("checkpoints/")]

    run = processes.start_and_reach(5, flags, before=undisturbed.steps, environment=environment)
    pid = processes.the_pid("outputs")
    kill(pid, signal.SIGKILL)
    processes.wait_in(run, lambda: pid not in processes.pids("outputs") and processes.pids("outputs"), "its restart")
    processes.wait_in(run, copied, "the first copy")
    processes.kill_all()
    processes.assert_nothing_is_left()
    shutil.rmtree(processes.run_dir / "checkpoints")
    exit_code, output = processes.run("run", *flags, environment=environment)
    assert exit_code == 0, output
    assert "was brought back from pelican://localhost:" in output
    assert "resumes from step-" in processes.log("trainer")
    undisturbed.assert_same(processes)
    newest = f"checkpoints/step-{undisturbed.steps:09d}.pt"
    assert newest in copied(), "the last copies wait for the end"
    assert (folder / newest).read_bytes() == (processes.run_dir / newest).read_bytes()
    processes.assert_nowhere(token)


def test_a_destination_that_can_t_be_read_ends_the_start(
    processes: Processes, federation: Federation, environment: dict[str, str], command: list[str]
) -> None:
    destination = federation.url("/private/nobody-may")  # without a token
    flags = [*command, *settings(f"outputs.destination={destination}", "outputs.every_s=0.2")]
    exit_code, output = processes.run("run", *flags, environment=environment)
    assert exit_code == 2, "what is there can't be known: nothing is begun anew"
    assert "no checkpoint in" in output


def test_a_file_that_is_gone_and_one_of_another_size_are_quarantined_with_every_attempt(
    processes: Processes, served: Served, environment: dict[str, str], showers: Showers
) -> None:
    federation, (gone, other, _) = served.federation, served.names
    sizes = {name: (federation.root / served.path.strip("/") / name).stat().st_size for name in served.names}
    lines = [f"{federation.url(served.path)}/{name}\t{size}" for name, size in sizes.items()]
    (processes.logs / "list.txt").write_text("\n".join(lines))
    (federation.root / served.path.strip("/") / gone).unlink()
    federation.put(f"{served.path}/{other}", b"PAR1 but not for long")
    command = ["-i", f"@{processes.logs / 'list.txt'}", *settings(*COUNTING)]
    summary = processes.train(*command, environment=environment)
    assert summary.events == {"trained": showers.tables[2].num_rows}
    reasons = {reason.split(": ")[0].rsplit("/", 1)[1]: reason for reason in summary["quarantined"]}
    assert reasons.keys() == {gone, other}
    assert "404" in reasons[gone]
    assert str(sizes[other]) in reasons[other]
    assert all("https://localhost:" in reason for reason in reasons.values()), "what each server said"
