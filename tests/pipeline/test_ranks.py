"""Several trainers learn together from the batches of one, whatever happens to them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from faults import is_stopped
from federation.free_ports import free_port
from rank import HOLD_VARIABLE
from runs import SMALL_STREAM, Process, Processes, kill, same, settings
from showers import PULSES_STREAM, Showers, write_pulses
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_remote_input import Server, bytes_under, server, urls

__all__ = ["server"]

pytestmark = pytest.mark.slow

RANKS = 2
TRAINERS = (1, 2, 3)
COMMON = ("stream.slots=8", "epochs=2", "trainer.log_every=1")
CHECKPOINT_STEPS = 5
OWN_STREAM = [one for one in SMALL_STREAM if not one.startswith("trainer.wgan.")]
OWN_MODEL = "examples.count_muons:TRAINING"
"""A model that draws no noise: what it learns does not depend on the number of trainers."""
CURVES = {"loss": 1e-5, "network_grad_norm": 1e-4}
"""How far the curves of one and several trainers may be apart, in parts of the value or of 1. Sums are added in another
order; a gradient's norm shows it most."""


@pytest.fixture(scope="module")
def together(command: list[str]) -> list[str]:
    """Arguments of a run with two trainers."""
    return [*command[:-2], *settings(*COMMON), "--trainers", str(RANKS)]


@pytest.fixture(scope="module")
def of_two(together: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """That run, which nobody disturbed."""
    yield from finished(tmp_path_factory.mktemp("two"), together)


@pytest.fixture(scope="module")
def of_one(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """The same run with one trainer."""
    yield from finished(tmp_path_factory.mktemp("one"), [*command[:-2], *settings(*COMMON)])


@pytest.fixture(scope="module", params=["muons", "direction", "own"])
def by_trainers(
    request: pytest.FixtureRequest, showers: Showers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Processes]]:
    """Runs of one workload, or model, with one to three trainers, by the number of these."""
    known: dict[int, Processes] = {}
    if request.param == "muons":
        known = {1: request.getfixturevalue("of_one"), 2: request.getfixturevalue("of_two")}
        command = request.getfixturevalue("together")[:-2]
    elif request.param == "direction":
        folder = tmp_path_factory.mktemp("direction")
        write_pulses(folder)
        command = ["-i", str(folder), *settings(*PULSES_STREAM, *COMMON, "epochs=1")]
    else:
        options = settings(*OWN_STREAM, *COMMON, "trainer.own.learning_rate=0.01")
        command = [*showers.input, "--model", OWN_MODEL, *options]
    started = {
        trainers: finished(tmp_path_factory.mktemp(f"{trainers}"), [*command, "--trainers", str(trainers)])
        for trainers in TRAINERS
        if trainers not in known
    }
    yield known | {trainers: next(run) for trainers, run in started.items()}
    for run in started.values():
        assert next(run, None) is None  # at its end


def finished(folder: Path, arguments: list[str]) -> Iterator[Processes]:
    processes = Processes(folder / "run", folder)
    try:
        processes.train(*arguments)
        processes.assert_nothing_is_left()
        yield processes
    finally:
        processes.end()


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


def test_batches_are_those_of_one_trainer_whatever_the_number_of_trainers(by_trainers: dict[int, Processes]) -> None:
    of_one = by_trainers[1]
    assert len(positions(of_one)) == 3
    for trainers in TRAINERS[1:]:
        assert_same(by_trainers[trainers], of_one)
        # The step of each of them ends at the same event: so each batch between has the same events.
        assert positions(by_trainers[trainers]) == positions(of_one)


@pytest.mark.parametrize("trainers", TRAINERS[1:])
def test_each_trainer_records_its_own_share_and_shares_are_about_equal(
    by_trainers: dict[int, Processes], trainers: int
) -> None:
    processes = by_trainers[trainers]
    names = ["audit.jsonl", *(f"audit-rank{rank}.jsonl" for rank in range(1, trainers))]
    assert processes.checkpoint()["audit_bytes"] == [(processes.run_dir / name).stat().st_size for name in names]
    trained = trained_by(processes)
    assert sorted(trained) == sorted(names)
    work = [sum(line["events"] + line["particles"] for line in lines) for lines in trained.values()]
    assert max(work) < 1.25 * min(work), f"a batch has 16 microbatches: six for one of three at most, not {work}"
    for rank in range(1, trainers):
        assert f"rank {rank} of {trainers}" in processes.log(f"trainer-{rank}")


@pytest.mark.parametrize("by_trainers", ["own"], indirect=True)
def test_several_trainers_learn_what_one_learns(by_trainers: dict[int, Processes]) -> None:
    one, weights_of_one = curves(by_trainers[1]), by_trainers[1].checkpoint()["task"]["networks"]
    assert one["loss"][-1][1] < 0.9 * one["loss"][0][1], "it has learned something"
    for trainers in TRAINERS[1:]:
        others, weights = curves(by_trainers[trainers]), by_trainers[trainers].checkpoint()["task"]["networks"]
        for name, most in CURVES.items():
            assert [step for step, _ in others[name]] == [step for step, _ in one[name]] != []
            differences = [
                abs(a - b) / max(1.0, abs(a)) for (_, a), (_, b) in zip(one[name], others[name], strict=True)
            ]
            assert max(differences) < most, f"{trainers} trainers, {name}: at {differences.index(max(differences))}"
        assert weights.keys() == weights_of_one.keys()
        for network in weights_of_one:
            for name, weight in weights_of_one[network].items():
                assert torch.allclose(weight.float(), weights[network][name].float(), rtol=1e-4, atol=1e-5), name


def test_a_run_goes_on_with_three_then_two_then_one_trainer_and_trains_what_it_would_have(
    processes: Processes, together: list[str], of_one: Processes
) -> None:
    steps = of_one.summary()["steps"]
    stops = (steps // 3, 2 * steps // 3, 0)
    for trainers, max_steps in zip((3, 2, 1), stops, strict=True):
        summary = processes.train(*together[:-2], "--trainers", str(trainers), "--max-steps", str(max_steps))
        assert summary["adds_up"]
        assert summary["steps"] == (max_steps or steps)
        assert processes.audits() == of_one.audits()[: len(processes.audits())]
    assert_same(processes, of_one)
    assert len(trained_by(processes)) == 3


def test_a_run_goes_on_with_more_trainers(processes: Processes, together: list[str], of_one: Processes) -> None:
    processes.train(*together[:-2], "--trainers", "1", "--max-steps", "17")
    processes.train(*together[:-2], "--trainers", "3", "--max-steps", "0")
    assert_same(processes, of_one)


def test_a_data_set_of_one_unit_keeps_four_trainers_busy(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(showers.tables[0], folder / "one.parquet")  # one row group
    options = settings(*SMALL_STREAM, "stream.unit_events=100000")
    summary = processes.train("-i", str(folder), *options, "--trainers", "4")
    summary.assert_read(showers.tables[0].num_rows)
    assert summary["steps"] == 10, "of 200 events each"
    trained = trained_by(processes)
    assert len(trained) == 4
    assert {line["unit"] for lines in trained.values() for line in lines} == {0}
    events = [sum(line["events"] for line in lines) for lines in trained.values()]
    assert min(events) > 0.8 * summary["events_trained"] / 4, events


def test_a_rank_that_is_killed_ends_the_other_and_all_start_again_from_the_checkpoint(
    processes: Processes, together: list[str], of_one: Processes, of_two: Processes
) -> None:
    run = processes.start_and_reach(CHECKPOINT_STEPS, together, before=of_one.summary()["steps"])
    for victim in range(RANKS):
        # The supervisor starts the ranks in their order.
        kill(processes.wait_in(run, lambda: living_ranks(processes), "all ranks")[victim])
        log = "trainer" if victim else "trainer-1"
        told = f"rank {victim} is gone: this rank ends too"
        processes.wait_in(run, lambda log=log, told=told: told in processes.log(log), "the other's end")
        step = processes.checkpoint_step()
        processes.wait_in(run, lambda step=step: processes.checkpoint_step() > step, "the next checkpoint")
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"] == {"fetcher": 0, "decoder": 0, "trainer": RANKS}
    assert run.output().count("was killed by SIGKILL; all trainers start again") == RANKS
    assert_same(processes, of_one)
    assert same(processes.checkpoint()["task"], of_two.checkpoint()["task"]), "to the bit"


def living_ranks(processes: Processes) -> list[int]:
    pids = processes.pids("trainer")
    return pids if len(pids) == RANKS else []


def test_ctrl_c_stops_all_ranks_before_the_same_step_with_one_checkpoint(
    processes: Processes, together: list[str], of_one: Processes
) -> None:
    never = settings("trainer.checkpoint_every=1000000")
    run = processes.start("run", *together, *never, environment=processes.brake(5))
    processes.wait_in(run, lambda: processes.trainer.step >= 5, "step 5")
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130, processes.report()
    processes.assert_nothing_is_left()
    step = processes.checkpoint_step()
    assert 5 <= step == processes.summary()["steps"] < of_one.summary()["steps"]
    assert processes.summary()["adds_up"]
    assert processes.audits() == of_one.audits()[: len(processes.audits())] != []

    processes.train(*together, *never)
    for name in ("trainer", "trainer-1"):
        assert f"resumes from step-{step:09d}.pt: step {step}," in processes.log(name)
    assert_same(processes, of_one)


def test_one_rank_that_is_asked_to_stop_stops_all_and_the_run_goes_on_with_another_number_of_trainers(
    processes: Processes, together: list[str], of_one: Processes
) -> None:
    run = processes.start_and_reach(CHECKPOINT_STEPS, together, before=of_one.summary()["steps"])
    kill(processes.pids("trainer")[1], signal.SIGTERM)
    assert processes.finish(run) == 130, processes.report()
    assert processes.summary()["steps"] == processes.checkpoint_step()
    lines = len((processes.run_dir / "audit-rank1.jsonl").read_text().splitlines())
    processes.train("--trainers", "1")
    assert len((processes.run_dir / "audit-rank1.jsonl").read_text().splitlines()) == lines
    assert_same(processes, of_one)


def test_the_fetcher_may_die_under_two_ranks(processes: Processes, together: list[str], of_one: Processes) -> None:
    run = processes.start_and_reach(CHECKPOINT_STEPS, together, before=of_one.summary()["steps"])
    kill(processes.the_pid("fetcher"))
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"] == {"fetcher": 1, "decoder": 0, "trainer": 0}
    assert_same(processes, of_one)


def test_two_ranks_get_by_with_two_slots(processes: Processes, together: list[str], of_one: Processes) -> None:
    processes.train(*together, *settings("stream.slots=2"))
    assert_same(processes, of_one)


def test_a_single_slot_for_two_ranks_is_refused_before_anything_starts(
    processes: Processes, together: list[str]
) -> None:
    exit_code, output = processes.run("run", *together, *settings("stream.slots=1"))
    assert exit_code == 2
    assert "stream.slots = 1: several trainers of a shard need 2 or more" in output
    assert not (processes.run_dir / "logs").exists()


def test_a_disk_that_is_full_of_used_files_gets_a_checkpoint_from_all_ranks(
    processes: Processes, showers: Showers, server: Server
) -> None:
    names = [path.name for path in showers.write(server.folder)]
    sizes = [(server.folder / name).stat().st_size for name in names]
    options = settings(
        *(*SMALL_STREAM, "stream.slots=4", "stream.block_files=1"),
        f"fetcher.disk_budget_gib={2.5 * max(sizes) / 2**30}",
        "trainer.checkpoint_every=1000000",  # only those that the fetcher asks for
    )
    processes.train(*urls(server, names), *options, "--trainers", "2")
    processes.summary().assert_read(showers.events)


def test_a_disk_for_three_blocks_is_enough_for_two_ranks_and_many_epochs(
    processes: Processes, showers: Showers, server: Server
) -> None:
    """With a stream of its own for each rank their places drifted apart, and such a run stood still for ever."""
    events = pa.concat_tables(showers.tables)
    names = [f"{number}.parquet" for number in range(16)]
    for number, name in enumerate(names):
        most = events.num_rows // len(names)
        rows = most // (1, 3)[number % 2]  # of different sizes, as those of real runs
        pq.write_table(events.slice(number * most, rows), server.folder / name, row_group_size=100)
    largest = max((server.folder / name).stat().st_size for name in names)
    total = sum((server.folder / name).stat().st_size for name in names)
    assert total > 2 * 3 * largest, "most files have to go before others come"
    options = settings(
        *(*SMALL_STREAM, "stream.slots=4", "stream.block_files=1", "epochs=3"),
        f"fetcher.disk_budget_gib={3 * largest / 2**30}",
        "trainer.checkpoint_every=1000000",  # only those that the fetcher asks for
    )
    processes.train(*urls(server, names), *options, "--trainers", "2")
    processes.summary().assert_read(3 * sum(pq.read_metadata(server.folder / name).num_rows for name in names))
    assert server.gets.total() > len(names), "files were evicted, and came again"
    assert bytes_under(processes.run_dir / "cache") == 0


def test_ranks_go_back_together_when_training_diverges_and_end_with_one_line(
    processes: Processes, together: list[str]
) -> None:
    hopeless = settings("trainer.wgan.critic_lr=1e30", "trainer.health.rollbacks=2")
    exit_code, output = processes.run("run", *together, *hopeless)
    assert exit_code == 2, processes.report()
    assert "Going back 2 time(s) did not help" in output.splitlines()[-1]
    assert output.count("Error:") == 1
    for name in ("trainer", "trainer-1"):
        assert processes.log(name).count("It goes back to step") == 2
    assert processes.summary()["adds_up"]


def test_a_mistake_of_the_user_is_told_once(processes: Processes, together: list[str]) -> None:
    exit_code, output = processes.run("run", *together, *settings("trainer.device=cuda"))
    assert exit_code == 2, processes.report()
    assert output.count("Error:") == 1
    assert "there is no CUDA device here" in output.splitlines()[-1]


def start_torchrun_rank(processes: Processes, rank: int, port: int, **environment: str) -> Process:
    """One rank as torchrun starts it, without torchrun."""
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | environment
    return processes.start("trainer", environment=variables)


def test_ranks_started_by_hand_meet_and_train(processes: Processes, together: list[str], of_one: Processes) -> None:
    fetcher = processes.start("fetcher", *together[:-2])
    others = [fetcher, processes.start("decoder")]
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    port = free_port()
    ranks = [start_torchrun_rank(processes, rank, port) for rank in (1, 0)]
    for process in (*ranks, *others):
        assert processes.finish(process) == 0, processes.report()
    assert processes.audits() == of_one.audits()


def test_a_rank_that_never_comes_is_named(processes: Processes, together: list[str]) -> None:
    fetcher = processes.start("fetcher", *together[:-2])
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    alone = start_torchrun_rank(processes, 0, free_port(), ICESTREAM_TRAINER__RANKS_TIMEOUT_S="0.5")
    assert processes.finish(alone) == 2
    assert "Error: rank 1 of 2 did not connect for 0.5 s" in alone.output()
    fetcher.send(signal.SIGTERM)
    processes.finish(fetcher)


# ---- Trainers that train nothing: the stream alone, of the trainers that a shard has.


@pytest.mark.parametrize(("decoders", "slots", "ranks"), [(1, 3, 2), (3, 8, 2), (2, 2, 2), (2, 3, 4)])
def test_ranks_get_what_one_gets_whatever_the_number_of_decoders_and_slots(
    processes: Processes, together: list[str], of_one: Processes, decoders: int, slots: int, ranks: int
) -> None:
    fetcher = processes.start("fetcher", *together[:-2], *settings(f"stream.slots={slots}"))
    others = [fetcher, *(processes.start("decoder") for _ in range(decoders))]
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    started = [processes.start_rank(rank, ranks) for rank in range(ranks)]
    for process in (*started, *others):
        assert processes.finish(process) == 0, processes.report()
    assert processes.audits() == of_one.audits()
    assert len(list(processes.run_dir.glob("audit-*/audit.jsonl"))) == ranks


def test_a_rank_that_is_killed_and_started_again_gets_its_units_once_more_and_the_other_one_goes_on(
    processes: Processes, together: list[str], of_one: Processes
) -> None:
    fetcher = processes.start("fetcher", *together[:-2])
    decoder = processes.start("decoder")
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    other, victim = processes.start_rank(0, 2), processes.start_rank(1, 2, **{HOLD_VARIABLE: "1"})
    processes.wait_in(fetcher, lambda: is_stopped(victim.pid), "its first batch")
    assert (processes.run_dir / "rank-1.json").exists()
    kill(victim.pid)
    processes.finish(victim)
    again = processes.start_rank(1, 2)
    for process in (other, again, fetcher, decoder):
        assert processes.finish(process) == 0, processes.report()
    assert processes.audits() == of_one.audits()
