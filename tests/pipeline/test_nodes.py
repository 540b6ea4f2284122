"""Promise 18: several nodes train what one trains, whatever happens to one of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Nodes
from runs import SMALL_STREAM, audits_in, kill, same, settings
from showers import EPOCHS, Showers

from common.locks import newest_number

pytestmark = pytest.mark.slow

STREAM = (
    *(one for one in SMALL_STREAM if not one.startswith(("stream.batch_events", "stream.block_files"))),
    *("stream.shards=2", "stream.block_files=1", "stream.batch_events=400", "local.decoders=1"),
    *("trainer.log_every=1", "trainer.wgan.penalty_weight=10"),
    *("trainer.wgan.generator_lr=2e-5", "trainer.wgan.critic_lr=4e-5"),
)
CHECKPOINT_STEPS = 5


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
def of_two(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[Nodes]:
    """Two nodes with a trainer and a shard each, which nobody disturbed."""
    run = Nodes(tmp_path_factory.mktemp("two"), arguments)
    try:
        run.train(2)
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


def test_two_nodes_train_every_event_and_the_shared_folder_has_the_results(of_two: Nodes, showers: Showers) -> None:
    of_two.summary().assert_read(EPOCHS * showers.events)
    assert sorted(of_two.audits()) == [f"shards/{shard:03d}/audit.jsonl" for shard in range(2)]
    assert newest_number(of_two.shared) == 1
    for place in range(2):
        assert f"rank {place} of 2, on cpu" in of_two.node(place).log("trainer")
        assert [path.name for path in (of_two.node(place).run_dir / "shards").iterdir()] == [f"{place:03d}"]
        assert not (of_two.node(place).run_dir / "checkpoints").exists()


def test_as_many_trainers_on_one_node_learn_the_same_to_the_bit(nodes: Nodes, of_two: Nodes) -> None:
    nodes.train(1, "--trainers", "2")
    assert_same(nodes, of_two)


def test_another_number_of_trainers_gets_the_same_batches(nodes: Nodes, of_two: Nodes) -> None:
    """Two share each shard."""
    nodes.train(1, "--trainers", "4")
    assert audits_in(nodes.shared) == audits_in(of_two.shared) != []
    assert nodes.checkpoint()["position"] == of_two.checkpoint()["position"]
    assert nodes.step() == of_two.step() > 5
    assert nodes.summary().events == of_two.summary().events


def test_a_killed_node_ends_the_other_and_all_start_again_from_the_checkpoint(nodes: Nodes, of_two: Nodes) -> None:
    started = nodes.start_and_reach(CHECKPOINT_STEPS, 2)
    kill(nodes.node(0).the_pid("node"))
    ends = nodes.ends(started)
    assert ends[1] == 75, nodes.report()
    for place in range(2):
        nodes.wait(lambda place=place: not nodes.node(place).pids(), "the end of what the node had started")
    assert nodes.step() < of_two.step()
    # One machine is empty, and the other one has the other shards.
    nodes.train(2, first_place=1)
    assert newest_number(nodes.shared) == 2
    assert_same(nodes, of_two)


def test_a_frozen_node_is_left_behind_and_changes_nothing_when_it_wakes_up(nodes: Nodes, of_two: Nodes) -> None:
    started = nodes.start_and_reach(CHECKPOINT_STEPS, 2)
    frozen = nodes.freeze(1)
    assert nodes.ends([started[0]]) == [75], nodes.report()
    assert "node 1 on" in started[0].output()
    assert "has been silent for" in started[0].output()
    nodes.train(2, first_place=2)
    before = {
        path: path.read_bytes() for path in nodes.shared.rglob("*") if path.is_file() and "nodes" not in path.parts
    }
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    assert nodes.ends([started[1]]) == [75], nodes.report()
    assert "attempt 2 has begun" in started[1].output()
    after = {path: path.read_bytes() for path in before}
    assert {path.name for path in before if before[path] != after[path]} <= {"run"}  # the lock's note
    assert_same(nodes, of_two)


def test_a_stopped_node_stops_all_with_a_checkpoint_and_fewer_nodes_go_on(nodes: Nodes, of_two: Nodes) -> None:
    started = nodes.start_and_reach(CHECKPOINT_STEPS, 2)
    started[1].send(signal.SIGTERM)
    assert nodes.ends(started) == [130] * 2, nodes.report()
    step = nodes.step()
    assert step == nodes.summary()["steps"] < of_two.step()
    nodes.train(1, "--trainers", "2")
    assert f"resumes from step-{step:09d}.pt" in nodes.node(0).log("trainer")
    assert_same(nodes, of_two)
