"""Promise 18: several nodes train what one trains, whatever happens to one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Network, Nodes
from runs import SMALL_STREAM, kill, same, settings
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
    assert same(run.results.checkpoint()["task"], other.results.checkpoint()["task"])
    assert run.results.checkpoint()["position"] == other.results.checkpoint()["position"]
    assert run.results.summary().events == other.results.summary().events


def assert_same_batches(run: Nodes, other: Nodes) -> None:
    """Every microbatch was trained once, in the same batches as in the other run."""
    assert run.results.audits() == other.results.audits() != []
    assert run.results.checkpoint()["position"] == other.results.checkpoint()["position"]
    assert run.results.checkpoint_step() == other.results.checkpoint_step() > CHECKPOINT_STEPS
    assert run.results.summary().events == other.results.summary().events


def test_two_nodes_train_every_event_and_the_shared_folder_has_the_results(of_two: Nodes, showers: Showers) -> None:
    of_two.results.summary().assert_read(EPOCHS * showers.events)
    assert sorted(of_two.audits()) == [f"shards/{shard:03d}/audit.jsonl" for shard in range(2)]
    assert newest_number(of_two.shared) == 1
    for place in range(2):
        assert f"rank {place} of 2, on cpu" in of_two.node(place).log("trainer")
        assert [path.name for path in (of_two.node(place).run_dir / "shards").iterdir()] == [f"{place:03d}"]
        assert not (of_two.node(place).run_dir / "checkpoints").exists()


def test_as_many_trainers_on_one_and_four_nodes_learn_the_same(tmp_path: Path, arguments: list[str]) -> None:
    """Some shards have a file more than others."""
    runs = []
    for number in (1, 4):
        runs.append(Nodes(tmp_path / str(number), [*arguments, *settings("stream.shards=4")]))
        try:
            runs[-1].train(number, trainers=4 // number)
            runs[-1].assert_nothing_is_left()
        finally:
            runs[-1].end()
    assert_same(*runs)


def test_another_number_of_trainers_gets_the_same_batches_and_goes_on_with_another_launch(
    nodes: Nodes, of_two: Nodes
) -> None:
    """Two share each shard, on a node each."""
    nodes.train(2, trainers=2, more=("--max-steps", str(CHECKPOINT_STEPS)))
    nodes.train(2, trainers=2, launch="another", more=("--max-steps", "0"))
    assert_same_batches(nodes, of_two)


def test_a_killed_trainer_and_a_killed_torchrun_start_all_again(nodes: Nodes, of_two: Nodes) -> None:
    started = [nodes.start(place, "2", brake_after=CHECKPOINT_STEPS) for place in range(2)]
    nodes.reach(CHECKPOINT_STEPS, started)
    kill(nodes.node(1).the_pid("trainer"))
    nodes.reach_attempt(2, 2)
    assert not any(one.ended() for one in started)
    started[0].send(signal.SIGKILL)
    nodes.wait(lambda: not nodes.node(0).pids(), "the end of what torchrun had started")
    # Another machine takes the place of the first one, with an empty run directory.
    nodes.finish([started[1], nodes.start(2, "2")])
    assert nodes.ends(started[:1]) == [-signal.SIGKILL]
    assert newest_number(nodes.shared) >= 3
    assert_same(nodes, of_two)


def test_a_frozen_machine_is_left_behind_and_changes_nothing_when_it_wakes_up(nodes: Nodes, of_two: Nodes) -> None:
    started = [nodes.start(place, "2", brake_after=CHECKPOINT_STEPS) for place in range(2)]
    nodes.reach(CHECKPOINT_STEPS, started)
    frozen = nodes.freeze(1)
    nodes.finish([started[0], nodes.start(2, "2")])
    assert "rank 1 is gone" in nodes.node(0).log("trainer")
    before = {path: path.read_bytes() for path in files_in(nodes)}
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    assert nodes.ends(started[1:]) == [1], nodes.report()
    assert {path: path.read_bytes() for path in files_in(nodes)} == before
    assert_same(nodes, of_two)


def test_machines_with_networks_of_their_own_go_on_after_an_outage_between_them(nodes: Nodes, of_two: Nodes) -> None:
    with Network.made() as network:
        nodes.network = network
        started = [nodes.start(place, "2", brake_after=CHECKPOINT_STEPS) for place in range(2)]
        nodes.reach(CHECKPOINT_STEPS, started)
        for place in range(2):
            assert network.listening(place) == {network.address(place)}
        network.cut("down")
        nodes.wait(lambda: newest_number(nodes.shared) > 1, "a start without a network")
        network.cut("up")
        nodes.release()
        nodes.finish(started)
    assert_same(nodes, of_two)


def test_a_lost_machine_leaves_the_rest_which_grow_again_and_stop(nodes: Nodes, of_two: Nodes) -> None:
    started = [nodes.start(place, "1:2", brake_after=CHECKPOINT_STEPS) for place in range(2)]
    nodes.reach_attempt(1, 2)
    nodes.reach(CHECKPOINT_STEPS, started)
    nodes.lose(0)
    nodes.reach_attempt(2, 1)
    started[0] = nodes.start(0, "1:2", brake_after=0)
    nodes.reach_attempt(3, 2)
    step = nodes.results.checkpoint_step()
    started[0].send(signal.SIGTERM)
    os.killpg(started[1].popen.pid, signal.SIGINT)  # Ctrl-C in its terminal
    assert nodes.ends(started) == [1, 1], nodes.report()
    assert nodes.results.summary()["exit_code"] == 130
    assert (
        step <= nodes.results.checkpoint_step() == nodes.results.summary()["steps"] < of_two.results.checkpoint_step()
    )
    nodes.release()
    nodes.train(2)
    assert_same_batches(nodes, of_two)


def test_a_mistake_is_told_once_and_ends_torchrun(nodes: Nodes) -> None:
    started = nodes.start(0, "1", more=("--set", "trainer.start_from=/nowhere"))
    assert nodes.ends([started]) == [1]
    assert started.output().count("Error: --start-from /nowhere: no such") == 1, started.output()


def files_in(nodes: Nodes) -> list[Path]:
    """Files of the shared folder but those in which processes meet, and the lock's note."""
    meeting = ("rendezvous", "ranks-", "run")
    return [path for path in nodes.shared.rglob("*") if path.is_file() and not path.name.startswith(meeting)]
