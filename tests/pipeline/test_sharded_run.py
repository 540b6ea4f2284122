"""Promise 17: a run in shards trains every event once, whatever happens to a shard, and its sum is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import COUNTING, SMALL_STREAM, Processes, kill, same, settings
from showers import EPOCHS, Showers

from common.planned import planned_name
from common.run_dir import INVENTORY_FOLDER, shard_dir
from common.status_files import read_fetchers

pytestmark = pytest.mark.slow

SHARDS = ("stream.block_files=1", "stream.slots=4", "local.decoders=1")


def arguments(showers: Showers, shards: int, stream: tuple[str, ...] = SMALL_STREAM) -> list[str]:
    """Run with ``shards`` shards. Three files an epoch: some shards have a block more than others."""
    return [*showers.input, *settings(*stream, *SHARDS, f"stream.shards={shards}"), "--epochs", str(EPOCHS)]


def by_trainer(processes: Processes) -> dict[str, list[str]]:
    """The audits of all trainers of all shards, by their place in the run directory."""
    paths = sorted(processes.run_dir.glob("shards/*/audit*.jsonl"))
    return {str(path.relative_to(processes.run_dir)): path.read_text().splitlines() for path in paths}


def pid_of(processes: Processes, verb: str, shard: int) -> int:
    """Process of a shard's service; 0: there is none."""
    for pid in processes.pids(verb):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[words.index(b"--shard") + 1] == str(shard).encode():
            return pid
    return 0


def assert_same(processes: Processes, undisturbed: Processes) -> None:
    """Weights, position and audits are those of the other run, to the bit."""
    assert by_trainer(processes) == by_trainer(undisturbed) != {}
    one, other = processes.checkpoint(), undisturbed.checkpoint()
    assert same(one["task"], other["task"])
    assert one["position"] == other["position"]
    assert processes.summary().events == undisturbed.summary().events


Finished = tuple[Processes, list[str]]
"""Run that nobody disturbed, and its arguments."""


def finished(folder: Path, command: list[str]) -> Iterator[Finished]:
    processes = Processes(folder / "run", folder)
    try:
        processes.train(*command)
        yield processes, command
    finally:
        processes.end()


@pytest.fixture(scope="module")
def of_two(showers: Showers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """In two shards."""
    yield from finished(tmp_path_factory.mktemp("two-shards"), arguments(showers, 2))


@pytest.fixture(scope="module")
def of_four(showers: Showers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """In four shards."""
    yield from finished(tmp_path_factory.mktemp("four-shards"), arguments(showers, 4))


@pytest.fixture(params=["of_two", "of_four"])
def undisturbed(request: pytest.FixtureRequest) -> Finished:
    run: Finished = request.getfixturevalue(request.param)
    return run


def test_every_event_is_trained_once_an_epoch(undisturbed: Finished, showers: Showers) -> None:
    processes, _ = undisturbed
    processes.summary().assert_read(EPOCHS * showers.events)
    shards = len(processes.trainer.shards)
    audits = by_trainer(processes)
    assert sorted(audits) == [f"shards/{shard:03d}/audit.jsonl" for shard in range(shards)]
    of_shards = [shard.events_read for shard in processes.trainer.shards]
    for shard, lines in enumerate(map(audits.get, sorted(audits))):
        found = [json.loads(line) for line in lines or ()]
        assert {line["shard"] for line in found} == {shard}
        places = [(line["epoch"], line["unit"], line["microbatch"]) for line in found]
        assert places == sorted(set(places)), "in the order of the shard's units"
        assert sum(line["events"] for line in found) == of_shards[shard]
    blocks = [len(range(shard, 3 * EPOCHS, shards)) for shard in range(shards)]
    assert of_shards == [2_000 * number for number in blocks]
    together = read_fetchers(processes.run_dir)
    assert together is not None
    assert (together.state, together.files_planned) == ("finished", 3 * EPOCHS)
    assert not (processes.run_dir / "ledger.sqlite").exists()
    assert len(list((processes.run_dir / INVENTORY_FOLDER).glob("files-*"))) == 1


def test_a_killed_fetcher_of_one_shard_changes_nothing(processes: Processes, of_four: Finished) -> None:
    other, command = of_four
    run = processes.start_and_reach(5, command, before=other.summary()["steps"])
    victim = processes.wait_in(run, lambda: pid_of(processes, "fetcher", 1), "the fetcher of shard 1")
    kill(victim)
    processes.wait_in(run, lambda: pid_of(processes, "fetcher", 1) not in (0, victim), "its restart")
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"] == {"fetcher": 1, "decoder": 0, "trainer": 0}
    assert "trainer" not in processes.log("fetcher-000").partition(" is gone")[0].rpartition("\n")[2]
    assert_same(processes, other)


def test_a_killed_trainer_changes_nothing(processes: Processes, of_two: Finished) -> None:
    other, command = of_two
    run = processes.start_and_reach(5, command, before=other.summary()["steps"])
    victim = processes.the_pid("trainer")
    processes.kill(victim)
    processes.wait_in(run, lambda: processes.pids("trainer"), "its restart")
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"]["trainer"] == 1
    assert_same(processes, other)


@pytest.mark.parametrize(("undisturbed", "trainers"), [("of_two", 4), ("of_four", 2)], indirect=["undisturbed"])
def test_trainers_that_share_the_shards_train_of_each_what_one_does(
    processes: Processes, undisturbed: Finished, trainers: int
) -> None:
    """Two read one shard, or each reads two. As many trainers as shards: the next test, and the nodes."""
    other, command = undisturbed
    processes.train(*command, "--trainers", str(trainers))
    assert processes.audits() == other.audits() != []
    assert processes.summary()["steps"] == other.summary()["steps"]
    assert processes.summary().events == other.summary().events


def test_a_stopped_run_goes_on_with_another_number_of_trainers(processes: Processes, of_two: Finished) -> None:
    other, command = of_two
    processes.train(*command, "--trainers", "2", "--max-steps", "20")
    processes.train(*command, "--trainers", "1", "--max-steps", "0")
    assert processes.audits() == other.audits() != []
    assert processes.summary().events == other.summary().events


def test_a_shard_that_lost_events_fails_the_run_and_is_named(processes: Processes, showers: Showers) -> None:
    command = arguments(showers, 2, COUNTING)
    processes.train(*command, "--max-steps", "10")
    record = processes.run_dir / INVENTORY_FOLDER / planned_name(1)
    with record.open("a") as lines:
        lines.write("[90, 1, 77]\n")  # a block that no trainer ever gets
    exit_code, output = processes.run("run", *command, "--max-steps", "0")
    assert exit_code == 1
    assert "shard 1: 6,077 planned, but 6,000 read by the trainers (77 missing)" in output
    assert processes.summary()["exit_status"] == "failed"
    assert not processes.summary()["adds_up"]


def test_fresh_and_another_number_of_shards(processes: Processes, showers: Showers) -> None:
    processes.train(*arguments(showers, 2, COUNTING))
    exit_code, output = processes.run("run", *arguments(showers, 4, COUNTING))
    assert exit_code == 2
    assert "stream.shards was 2, now 4" in output
    processes.train(*arguments(showers, 4, COUNTING), "--new-plan")
    assert processes.summary()["events_read"] == 2 * EPOCHS * showers.events
    assert not (shard_dir(processes.run_dir, 0) / "ledger.sqlite.damaged").exists()
    processes.train(*arguments(showers, 1, COUNTING), "--fresh", "--yes")
    assert not (processes.run_dir / "shards").exists()
    assert not (processes.run_dir / INVENTORY_FOLDER).exists()
    processes.summary().assert_read(EPOCHS * showers.events)


def test_shards_started_by_hand_make_the_same_run_and_a_sum_that_is_wrong_fails_the_trainer(
    processes: Processes, showers: Showers
) -> None:
    *inputs_and_settings, _, epochs = arguments(showers, 2, COUNTING)
    options = [*inputs_and_settings, *settings(f"epochs={epochs}")]
    exit_code, output = processes.run("fetcher", *options)
    assert exit_code == 2
    assert "stream.shards = 2: a fetcher or decoder needs --shard 0 to --shard 1" in output
    folder = processes.run_dir / INVENTORY_FOLDER
    folder.mkdir(parents=True)
    (folder / planned_name(0)).write_text("[90, 0, 1]\n")
    others = [processes.start("fetcher", *options, "--shard", str(shard)) for shard in (1, 0)]
    others += [processes.start("decoder", "--shard", str(shard)) for shard in range(2)]
    trainer = processes.start("trainer")
    assert processes.finish(trainer) == 1, processes.report()
    assert "shard 0: 6,001 planned, but 6,000 read by the trainers (1 missing)" in trainer.output()
    for process in others:
        assert processes.finish(process) == 0, processes.report()
    assert processes.audits()
    assert processes.summary()["events_read"] == EPOCHS * showers.events


def test_an_endless_run_without_an_event_to_train_ends_with_the_reason(processes: Processes, showers: Showers) -> None:
    command = [*arguments(showers, 2)[:-2], *settings("stream.held_out=0.9999999")]
    exit_code, output = processes.run("run", *command, "--epochs", "0", "--trainers", "2")
    assert exit_code == 2
    assert "no event of a whole epoch can be trained" in output
