"""Promise 17: a run in shards trains every event once, whatever happens to a shard or its files; its sum is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from proc import command_line
from runs import COUNTING, SMALL_STREAM, Processes, finished, kill, same, settings
from showers import EPOCHS, Showers

from common.paths import INVENTORY_FOLDER
from common.status import read_fetchers
from common.summary import planned_name

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
        words = command_line(pid)  # none, if it has just ended
        if ("--shard", str(shard)) in pairwise(words):
            return pid
    return 0


def assert_same(processes: Processes, undisturbed: Processes) -> None:
    """Weights, position and audits are those of the other run, to the bit."""
    assert by_trainer(processes) == by_trainer(undisturbed) != {}
    one, other = processes.checkpoint(), undisturbed.checkpoint()
    assert same(one["task"], other["task"])
    assert one["position"] == other["position"]
    assert processes.summary().events == undisturbed.summary().events


@pytest.fixture(scope="module")
def four(showers: Showers) -> list[str]:
    """Arguments of a run in four shards."""
    return arguments(showers, 4)


@pytest.fixture(scope="module")
def of_four(four: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """That run, which nobody disturbed."""
    yield from finished(tmp_path_factory.mktemp("four-shards"), four)


def test_every_event_is_trained_once_an_epoch(of_four: Processes, showers: Showers) -> None:
    processes = of_four
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


def test_a_killed_fetcher_of_one_shard_and_a_killed_trainer_change_nothing(
    processes: Processes, four: list[str], of_four: Processes
) -> None:
    run = processes.start_and_reach(5, four, before=of_four.summary()["steps"])
    victim = processes.wait_in(run, lambda: pid_of(processes, "fetcher", 1), "the fetcher of shard 1")
    kill(victim)
    processes.wait_in(run, lambda: pid_of(processes, "fetcher", 1) not in (0, victim), "its restart")
    assert "trainer" not in processes.log("fetcher-000").partition(" is gone")[0].rpartition("\n")[2]
    processes.kill(processes.the_pid("trainer"))
    processes.wait_in(run, lambda: processes.pids("trainer"), "its restart")
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"] == {"fetcher": 1, "decoder": 0, "trainer": 1}
    assert_same(processes, of_four)


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


def test_sets_are_mixed_alike_by_one_trainer_and_by_two_that_are_killed(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    """Promise 16: the same stream, in a proportion, whatever happens; an epoch ends once each set was read."""
    for name, table in (("many", pa.concat_tables(showers.tables)), ("few", showers.tables[0].slice(0, 300))):
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=200)
    sets = [str(tmp_path / "many.parquet"), str(tmp_path / "few.parquet")]
    inputs = [argument for path in sets for argument in ("-i", path)]
    command = [*inputs, *settings(*COUNTING, "stream.weights=[3,1]", "stream.slots=4", "local.decoders=1")]
    other = Processes(tmp_path / "of-one", tmp_path)
    other.train(*command)
    of_one = other.summary()
    run = processes.start_and_reach(5, [*command, "--trainers", "2"], before=of_one["steps"])
    victim = processes.wait_in(run, lambda: pid_of(processes, "fetcher", 1), "the fetcher of the second set")
    kill(victim)
    processes.wait_in(run, lambda: pid_of(processes, "fetcher", 1) not in (0, victim), "its restart")
    processes.kill(processes.pids("trainer")[0])
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"]["trainer"] == 1
    assert processes.checkpoint()["position"] == other.checkpoint()["position"]
    trained = [sorted(line for lines in by_trainer(one).values() for line in lines) for one in (processes, other)]
    assert trained[0] == trained[1] != []
    assert processes.summary()["sets"] == of_one["sets"]
    many, few = (of_one["sets"][path]["events_read"] for path in sets)
    assert showers.events <= many < showers.events + 200, "each event once, and the first ones of the next pass"
    assert few / many == pytest.approx(1 / 3, rel=0.02)


FILES = 6
"""Files of the data set, in one block of each of two shards."""
TWO_SHARDS = ("stream.shards=2", "stream.block_files=3", "stream.slots=4", "local.decoders=1")


def write(folder: Path, showers: Showers) -> list[Path]:
    """Files whose row groups differ in size, so that a unit is another one if any of them is left out."""
    folder.mkdir()
    paths = [folder / f"{number}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        pq.write_table(showers.tables[number % 3], path, row_group_size=130 + 30 * number)
    return paths


def forget_files(processes: Processes) -> None:
    """What a new node, or one with a damaged disk, has: no ledger."""
    for path in processes.run_dir.glob("shards/*/ledger.sqlite*"):
        path.unlink()


def test_a_file_that_goes_bad_in_a_begun_block_leaves_the_sum_right_for_fetchers_without_their_ledgers(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    victim = write(tmp_path / "data", showers)[2]
    command = ["-i", str(tmp_path / "data"), *settings(*COUNTING, *TWO_SHARDS)]
    processes.train(*command, "--max-steps", "15")
    assert 0 < processes.summary()["events_trained"] < showers.events, "both blocks are begun, and not at their end"
    victim.write_bytes(victim.read_bytes()[:-100])
    forget_files(processes)
    processes.train(*command, "--max-steps", "0")
    processes.summary().assert_read(2 * showers.events)
    assert any(str(victim) in line for line in processes.summary()["quarantined"])


def test_a_new_plan_of_other_inputs_begins_in_all_shards_and_another_number_of_shards_needs_fresh(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    paths = write(tmp_path / "data", showers)
    stream = settings(*COUNTING, *TWO_SHARDS)
    processes.train("-i", str(tmp_path / "data"), *stream, "--max-steps", "10")
    before = processes.summary()["events_read"]
    exit_code, output = processes.run("run", *settings("stream.shards=4"))
    assert exit_code == 2
    assert "stream.shards was 2, now 4" in output
    alone = paths[0].rename(tmp_path / "alone.parquet")
    processes.train("-i", str(alone), *stream, "--max-steps", "0", "--new-plan")
    processes.summary().assert_read(before + showers.events // 3)
    processes.train("-i", str(alone), *stream, *settings("stream.shards=1"), "--fresh", "--yes")
    assert not (processes.run_dir / "shards").exists()
    assert not (processes.run_dir / INVENTORY_FOLDER).exists()
    processes.summary().assert_read(showers.events // 3)


def test_an_endless_run_of_two_trainers_without_an_event_to_train_ends_with_the_reason(
    processes: Processes, showers: Showers
) -> None:
    stream = settings(*SMALL_STREAM, *TWO_SHARDS, "stream.block_files=1", "stream.held_out=0.9999999")
    exit_code, output = processes.run("run", *showers.input, *stream, "--epochs", "0", "--trainers", "2")
    assert exit_code == 2
    assert "no event of a whole epoch can be trained" in output
