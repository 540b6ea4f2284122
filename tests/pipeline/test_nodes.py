"""Promise 18: several nodes train what one trains, whatever happens to one of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Nodes
from runs import SMALL_STREAM, audits_in, kill, same, settings
from showers import EPOCHS, Showers

from common.attempt import newest_number

pytestmark = pytest.mark.slow

RANKS = 4
"""Trainers of all nodes."""
STREAM = (
    *(one for one in SMALL_STREAM if not one.startswith(("stream.batch_events", "stream.block_files"))),
    *("stream.shards=4", "stream.block_files=1", "stream.batch_events=800", "local.decoders=1"),
    *("trainer.log_every=1", "trainer.wgan.penalty_weight=10", "trainer.wgan.critic_steps=1"),
    *("trainer.wgan.generator_lr=2e-5", "trainer.wgan.critic_lr=4e-5", "trainer.validation.events=0"),
)
WITHOUT_NOISE = (
    *(one for one in STREAM if not one.startswith("trainer.wgan.")),
    *("trainer.model=examples.count_muons:TRAINING", "trainer.own.learning_rate=0.01"),
)
"""A model that draws none: what it learns does not depend on the number of trainers."""
CHECKPOINT_STEPS = 5
MANY = settings("stream.batch_events=400")
"""Twice as many steps: time for a disturbance."""


@pytest.fixture(scope="module")
def arguments(showers: Showers) -> list[str]:
    return [*showers.input, *settings(*STREAM), "--epochs", str(EPOCHS)]


@pytest.fixture
def nodes(tmp_path: Path, arguments: list[str]) -> Iterator[Nodes]:
    """A run of several nodes. At its end nothing of it may be left."""
    nodes = Nodes(tmp_path, arguments)
    try:
        yield nodes
        nodes.release()
        nodes.assert_nothing_is_left()
    finally:
        nodes.end()


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[Nodes]:
    """Four nodes with a trainer each, which nobody disturbed."""
    yield from finished(tmp_path_factory.mktemp("four"), arguments, 4, 1)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[Nodes]:
    """Two nodes with a trainer each, which make many steps, and which nobody disturbed."""
    yield from finished(tmp_path_factory.mktemp("two"), [*arguments, *MANY], 2, 1)


def finished(folder: Path, arguments: list[str], nodes: int, trainers: int) -> Iterator[Nodes]:
    run = Nodes(folder, arguments)
    try:
        run.train(nodes, "--trainers", str(trainers))
        run.assert_nothing_is_left()
        yield run
    finally:
        run.end()


def assert_same(run: Nodes, other: Nodes) -> None:
    """Weights and audits are those of the other run, to the bit."""
    assert run.audits() == other.audits() != {}
    assert same(run.checkpoint()["task"], other.checkpoint()["task"])
    assert run.checkpoint()["position"] == other.checkpoint()["position"]
    assert run.summary().events == other.summary().events


def test_four_nodes_train_every_event_and_the_shared_folder_has_the_results(of_four: Nodes, showers: Showers) -> None:
    of_four.summary().assert_read(EPOCHS * showers.events)
    assert sorted(of_four.audits()) == [f"shards/{shard:03d}/audit.jsonl" for shard in range(4)]
    assert newest_number(of_four.shared) == 1
    for place in range(4):
        assert f"rank {place} of 4, on cpu" in of_four.node(place).log("trainer")
        assert [path.name for path in sorted((of_four.node(place).run_dir / "shards").iterdir())] == [f"{place:03d}"]
        assert not (of_four.node(place).run_dir / "checkpoints").exists()


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_as_many_trainers_on_fewer_nodes_learn_the_same_to_the_bit(
    nodes: Nodes, of_four: Nodes, num_nodes: int
) -> None:
    nodes.train(num_nodes, "--trainers", str(RANKS // num_nodes))
    assert_same(nodes, of_four)


@pytest.mark.parametrize("trainers", [1, 8])
def test_another_number_of_trainers_gets_the_same_batches(nodes: Nodes, of_four: Nodes, trainers: int) -> None:
    """One reads all shards, or two share each."""
    nodes.train(1, "--trainers", str(trainers))
    assert audits_in(nodes.shared) == audits_in(of_four.shared) != []
    assert nodes.checkpoint()["position"] == of_four.checkpoint()["position"]
    assert nodes.step() == of_four.step() > 5
    assert nodes.summary().events == of_four.summary().events


def test_another_number_of_trainers_learns_the_same_curve(tmp_path: Path, showers: Showers) -> None:
    arguments = [*showers.input, *settings(*WITHOUT_NOISE), "--epochs", str(EPOCHS)]
    runs = [finished(tmp_path / name, arguments, num, 1) for name, num in (("one", 1), ("four", 4))]
    one, four = (next(run) for run in runs)
    assert one.audits() == four.audits()
    assert len(one.curve("loss")) == len(four.curve("loss")) > 5
    pairs = zip(one.curve("loss"), four.curve("loss"), strict=True)
    assert max(abs(a - b) / max(1.0, abs(a)) for a, b in pairs) < 1e-5
    for run in runs:
        assert next(run, None) is None  # at its end


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_node_ends_the_other_and_all_start_again_from_the_checkpoint(
    nodes: Nodes, of_two: Nodes, victim: int
) -> None:
    started = nodes.start_and_reach(CHECKPOINT_STEPS, 2, *MANY)
    kill(nodes.node(victim).the_pid("node"))
    ends = nodes.ends(started)
    assert ends[1 - victim] == 75, nodes.report()
    for place in range(2):
        nodes.wait(lambda place=place: not nodes.node(place).pids(), "the end of what the node had started")
    assert nodes.step() < of_two.step()
    # One machine is empty, and the other one has the other shards.
    nodes.train(2, *MANY, first_place=1)
    assert newest_number(nodes.shared) == 2
    assert_same(nodes, of_two)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_frozen_node_is_left_behind_and_changes_nothing_when_it_wakes_up(
    nodes: Nodes, of_two: Nodes, victim: int
) -> None:
    started = nodes.start_and_reach(CHECKPOINT_STEPS, 2, *MANY)
    frozen = nodes.freeze(victim)
    assert nodes.ends([started[1 - victim]]) == [75], nodes.report()
    assert f"node {victim} on" in started[1 - victim].output()
    assert "has been silent for" in started[1 - victim].output()
    nodes.train(2, *MANY, first_place=2)
    before = {
        path: path.read_bytes() for path in nodes.shared.rglob("*") if path.is_file() and "nodes" not in path.parts
    }
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    assert nodes.ends([started[victim]]) == [75], nodes.report()
    assert "attempt 2 has begun" in started[victim].output()
    after = {path: path.read_bytes() for path in before}
    assert {path.name for path in before if before[path] != after[path]} <= {"run"}  # the lock's note
    assert_same(nodes, of_two)


def test_a_stopped_node_stops_all_with_a_checkpoint_and_fewer_nodes_go_on(nodes: Nodes, of_four: Nodes) -> None:
    started = nodes.start_and_reach(CHECKPOINT_STEPS, 4, *settings("trainer.checkpoint_every=5"))
    started[2].send(signal.SIGTERM)
    assert nodes.ends(started) == [130] * 4, nodes.report()
    step = nodes.step()
    assert step == nodes.summary()["steps"] < of_four.step()
    nodes.train(2, "--trainers", "2")
    assert f"resumes from step-{step:09d}.pt" in nodes.node(0).log("trainer")
    assert_same(nodes, of_four)


def test_a_killed_trainer_ends_all_nodes_which_start_again(nodes: Nodes, of_two: Nodes) -> None:
    started = nodes.start_and_reach(CHECKPOINT_STEPS, 2, *MANY)
    kill(nodes.node(1).the_pid("trainer"))
    assert nodes.ends(started) == [75, 75], nodes.report()
    assert "trainer was killed by SIGKILL; start all nodes again" in started[0].output()
    nodes.train(2, *MANY)
    assert_same(nodes, of_two)


def test_a_finished_run_is_finished_again_by_all_nodes(of_two: Nodes) -> None:
    before = of_two.audits()
    summary = of_two.train(2)
    assert summary["adds_up"]
    assert of_two.audits() == before


def test_a_sum_that_is_wrong_names_the_shard(nodes: Nodes) -> None:
    nodes.train(2)
    record = nodes.shared / "inventory" / "planned-003.jsonl"
    lines = [line for line in record.read_text().splitlines() if line]
    record.write_text("\n".join([*lines, "[99, 1, 5]"]) + "\n")
    started = nodes.start(2)
    assert nodes.ends(started) == [1, 0], nodes.report()
    assert "shard 3: " in started[0].output().splitlines()[-2]
