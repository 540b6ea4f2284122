"""Several trainers learn together from the batches of one, whatever happens to them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import COUNTING, SMALL_STREAM, Processes, finished, kill, same, settings
from showers import Server, Showers, bytes_under, urls
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytestmark = pytest.mark.slow

RANKS = 2
COMMON = ("stream.slots=8", "epochs=2", "trainer.log_every=1")
CHECKPOINT_STEPS = 5
OWN_STREAM = [one for one in SMALL_STREAM if not one.startswith("trainer.wgan.")]
OWN_MODEL = "examples.count_muons:TRAINING"
"""A model that draws no noise: what it learns does not depend on the number of trainers."""
CURVES = {"loss": 1e-5, "network_grad_norm": 1e-4}
"""How far the curves of one and several trainers may be apart, in parts of the value or of 1. Sums are added in another
order; a gradient's norm shows it most."""


@pytest.fixture(scope="module")
def alone(showers: Showers) -> list[str]:
    """Arguments of a run of the model without noise."""
    options = settings(*OWN_STREAM, *COMMON, "trainer.own.learning_rate=0.01")
    return [*showers.input, "--model", OWN_MODEL, *options]


@pytest.fixture(scope="module")
def together(alone: list[str]) -> list[str]:
    """The same with two trainers."""
    return [*alone, "--trainers", str(RANKS)]


@pytest.fixture(scope="module")
def of_one(alone: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """The run with one trainer, which nobody disturbed."""
    yield from finished(tmp_path_factory.mktemp("one"), alone)


@pytest.fixture(scope="module")
def of_two(together: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """The run with two trainers, which nobody disturbed."""
    yield from finished(tmp_path_factory.mktemp("two"), together)


def curves(processes: Processes) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by name, from TensorBoard."""
    folders = {path.parent for path in processes.run_dir.glob("tensorboard/**/events*")}
    assert len(folders) == 1, "only the first rank writes there"
    events = EventAccumulator(str(folders.pop()))
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(f"train/{name}")] for name in CURVES}


def positions(processes: Processes) -> dict[str, str]:
    """Place in the stream at each checkpoint that is kept."""
    paths = (processes.run_dir / "checkpoints").glob("step-*.pt")
    return {path.name: torch.load(path, weights_only=True)["position"] for path in paths}


def trained_by(processes: Processes) -> dict[str, list[dict[str, Any]]]:
    """What each trainer has trained, by the name of its audit."""
    paths = sorted(processes.run_dir.glob("audit*.jsonl"))
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in paths}


def assert_same(processes: Processes, of_one: Processes) -> None:
    """Trained and counted is what one trainer trained and counted, in as many steps."""
    assert processes.audits() == of_one.audits() != []
    one, other = of_one.summary(), processes.summary()
    for name in ("events_read", "events_trained", "events_empty", "events_held_out", "particles_trained", "steps"):
        assert other[name] == one[name], name
    assert other["adds_up"]


def test_two_trainers_train_the_batches_of_one_in_about_equal_shares(of_one: Processes, of_two: Processes) -> None:
    assert len(positions(of_one)) == 3
    assert_same(of_two, of_one)
    # The step of each of them ends at the same event: so each batch between has the same events.
    assert positions(of_two) == positions(of_one)
    names = ["audit.jsonl", "audit-rank1.jsonl"]
    assert of_two.checkpoint()["audit_bytes"] == {name: (of_two.run_dir / name).stat().st_size for name in names}
    trained = trained_by(of_two)
    assert sorted(trained) == sorted(names)
    work = [sum(line["events"] + line["particles"] for line in lines) for lines in trained.values()]
    assert max(work) < 1.25 * min(work), work
    assert "rank 1 of 2" in of_two.log("trainer-1")


def test_two_trainers_learn_what_one_learns(of_one: Processes, of_two: Processes) -> None:
    one, others = curves(of_one), curves(of_two)
    assert one["loss"][-1][1] < 0.9 * one["loss"][0][1], "it has learned something"
    for name, most in CURVES.items():
        assert [step for step, _ in others[name]] == [step for step, _ in one[name]] != []
        differences = [abs(a - b) / max(1.0, abs(a)) for (_, a), (_, b) in zip(one[name], others[name], strict=True)]
        assert max(differences) < most, f"{name}: at {differences.index(max(differences))}"
    weights_of_one, weights = (run.checkpoint()["task"]["networks"] for run in (of_one, of_two))
    assert weights.keys() == weights_of_one.keys()
    for network in weights_of_one:
        for name, weight in weights_of_one[network].items():
            assert torch.allclose(weight.float(), weights[network][name].float(), rtol=1e-4, atol=1e-5), name


def test_a_run_goes_on_with_three_trainers_then_with_one_and_trains_what_it_would_have(
    processes: Processes, alone: list[str], of_one: Processes
) -> None:
    steps = of_one.summary()["steps"]
    for trainers, max_steps in ((3, steps // 2), (1, 0)):
        summary = processes.train(*alone, "--trainers", str(trainers), "--max-steps", str(max_steps))
        assert summary["adds_up"]
        assert summary["steps"] == (max_steps or steps)
        assert processes.audits() == of_one.audits()[: len(processes.audits())]
    assert_same(processes, of_one)
    assert len(trained_by(processes)) == 3


def test_a_killed_fetcher_killed_ranks_and_ctrl_c_change_nothing(
    processes: Processes, together: list[str], of_one: Processes, of_two: Processes
) -> None:
    """The ranks outlive their fetcher. One that dies ends the other, and both start again from the checkpoint."""
    run = processes.start_and_reach(CHECKPOINT_STEPS, together, before=of_one.summary()["steps"])
    victim, step = processes.the_pid("fetcher"), processes.trainer.step
    kill(victim)
    processes.wait_in(run, lambda: processes.pids("fetcher") not in ([], [victim]), "another fetcher")
    processes.wait_in(run, lambda: processes.trainer.step > step, "a step")
    for rank in range(RANKS):
        # The supervisor starts the ranks in their order.
        kill(processes.wait_in(run, lambda: living_ranks(processes), "all ranks")[rank])
        log = "trainer" if rank else "trainer-1"
        told = f"rank {rank} is gone: this rank ends too"
        processes.wait_in(run, lambda log=log, told=told: told in processes.log(log), "the other's end")
        step = processes.checkpoint_step()
        processes.wait_in(run, lambda step=step: processes.checkpoint_step() > step, "the next checkpoint")
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130, processes.report()
    processes.assert_nothing_is_left()
    assert processes.summary()["restarts"] == {"fetcher": 1, "decoder": 0, "trainer": RANKS}
    assert run.output().count("was killed by SIGKILL; all trainers start again") == RANKS
    step = processes.checkpoint_step()
    assert CHECKPOINT_STEPS < step == processes.summary()["steps"] < of_one.summary()["steps"], "one for both"
    assert processes.summary()["adds_up"]
    assert processes.audits() == of_one.audits()[: len(processes.audits())] != []

    processes.train(*together)
    for name in ("trainer", "trainer-1"):
        assert f"resumes from step-{step:09d}.pt: step {step}," in processes.log(name)
    assert_same(processes, of_one)
    assert same(processes.checkpoint()["task"], of_two.checkpoint()["task"]), "to the bit"


def living_ranks(processes: Processes) -> list[int]:
    pids = processes.pids("trainer")
    return pids if len(pids) == RANKS else []


def test_a_disk_for_three_blocks_is_enough_for_two_ranks_and_many_epochs(
    processes: Processes, showers: Showers, server: Server
) -> None:
    """With a stream of its own for each rank their places drifted apart, and such a run stood still for ever."""
    events = pa.concat_tables(showers.tables)
    names = [f"{number}.parquet" for number in range(12)]
    for number, name in enumerate(names):
        most = events.num_rows // len(names)
        rows = most // (1, 3)[number % 2]  # of different sizes, as those of real runs
        pq.write_table(events.slice(number * most, rows), server.folder / name, row_group_size=100)
    largest = max((server.folder / name).stat().st_size for name in names)
    total = sum((server.folder / name).stat().st_size for name in names)
    assert total > 2 * 3 * largest, "most files have to go before others come"
    options = settings(
        *(*COUNTING, "stream.slots=4", "stream.block_files=1", "epochs=2"),
        f"fetcher.disk_budget_gib={3 * largest / 2**30}",
        "trainer.checkpoint_every=1000000",  # only those that the fetcher asks for
    )
    processes.train(*urls(server, names), *options, "--trainers", "2")
    processes.summary().assert_read(2 * sum(pq.read_metadata(server.folder / name).num_rows for name in names))
    assert server.gets.total() > len(names), "files were evicted, and came again"
    assert bytes_under(processes.run_dir / "cache") == 0
