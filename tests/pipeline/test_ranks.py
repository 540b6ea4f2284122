"""Several trainers learn together what one learns alone, whatever happens to them."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runs import SMALL_STREAM, Process, Processes, kill, settings
from showers import PULSES_STREAM, Showers, write_pulses
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_remote_input import Server, server, urls

__all__ = ["server"]

pytestmark = pytest.mark.slow

RANKS = 2
# At the default rates the two networks chase each other so fast that rounding grows a million times in 90 steps; at
# these it stays what it is, and only an error of the ranks can part the curves.
LANES = (
    *("stream.lanes=4", "stream.slots=8", "epochs=2"),
    *("trainer.log_every=1", "trainer.wgan.penalty_weight=10", "trainer.wgan.critic_steps=2"),
    *("trainer.wgan.generator_lr=2e-5", "trainer.wgan.critic_lr=4e-5"),
)
CURVES = dict.fromkeys(("c_loss", "g_loss", "m_loss", "w_gap", "gp_norm"), 1e-5) | dict.fromkeys(
    ("generator_grad_norm", "critic_grad_norm", "count_grad_norm"), 1e-4
)
"""How far the curves of one and two trainers may be apart, in parts of the value or of 1. Sums are added in another
order; a gradient's norm shows it most."""
JUMPS = ("gp_norm",)
"""Curves that rounding may move further in single steps: the slope jumps where another muon becomes the largest."""
CHECKPOINT_STEPS = 5


def by_lane(processes: Processes) -> dict[int, list[str]]:
    """The audits of all ranks, lane by lane."""
    lanes: dict[int, list[str]] = {}
    for path in sorted(processes.run_dir.glob("audit*.jsonl")):
        for line in path.read_text().splitlines():
            lanes.setdefault(json.loads(line)["lane"], []).append(line)
    return lanes


@pytest.fixture(scope="module")
def together(command: list[str]) -> list[str]:
    """Arguments of a run with two trainers."""
    return [*command[:-2], *settings(*LANES), "--trainers", str(RANKS)]


@pytest.fixture(scope="module")
def of_two(together: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """That run, which nobody disturbed."""
    yield from finished(tmp_path_factory.mktemp("two"), together)


@pytest.fixture(scope="module")
def of_one(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """The same run with one trainer."""
    yield from finished(tmp_path_factory.mktemp("one"), [*command[:-2], *settings(*LANES)])


@pytest.fixture(scope="module", params=["muons", "direction"])
def two_and_one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Processes]]:
    """Two trainers, and one: the run of each workload."""
    if request.param == "muons":
        yield [request.getfixturevalue("of_two"), request.getfixturevalue("of_one")]
        return
    folder = tmp_path_factory.mktemp("direction")
    write_pulses(folder)
    command = ["-i", str(folder), *settings(*PULSES_STREAM, *LANES, "epochs=1"), "--trainers"]
    runs = [finished(tmp_path_factory.mktemp(f"{trainers}"), [*command, str(trainers)]) for trainers in (RANKS, 1)]
    yield [next(run) for run in runs]
    for run in runs:
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


def assert_same(processes: Processes, of_one: Processes) -> None:
    """Trained in each lane and counted is what one trainer trained and counted."""
    assert by_lane(processes) == by_lane(of_one)
    one, two = of_one.summary(), processes.summary()
    for name in ("events_read", "events_trained", "events_empty", "events_held_out", "particles_trained", "steps"):
        assert two[name] == one[name], name
    assert two["adds_up"]


def test_two_trainers_train_in_each_lane_what_one_does(two_and_one: list[Processes]) -> None:
    of_two, of_one = two_and_one
    assert_same(of_two, of_one)
    assert sorted(path.name for path in of_two.run_dir.glob("audit*.jsonl")) == ["audit-rank1.jsonl", "audit.jsonl"]
    assert of_two.checkpoint()["audit_bytes"] == [
        (of_two.run_dir / name).stat().st_size for name in ("audit.jsonl", "audit-rank1.jsonl")
    ]
    assert "rank 1 of 2" in of_two.log("trainer-1")


def test_the_loss_curve_of_two_trainers_is_that_of_one(of_two: Processes, of_one: Processes) -> None:
    one, two = curves(of_one), curves(of_two)
    for name in CURVES:
        assert [step for step, _ in two[name]] == [step for step, _ in one[name]] != []
        differences = [abs(a - b) / max(1.0, abs(a)) for (_, a), (_, b) in zip(one[name], two[name], strict=True)]
        judged = len(differences) - (len(differences) // 50 if name in JUMPS else 0)
        largest = sorted(differences)[judged - 1]
        assert largest < CURVES[name], f"{name}: {largest} at {differences.index(largest)}"
        assert max(differences) < 1e-3, name
    assert any(value for _, value in one["gp_norm"]), "the gradient penalty was at work"
    weights_of_one, weights = of_one.checkpoint()["task"]["networks"], of_two.checkpoint()["task"]["networks"]
    for network in weights_of_one:
        for name, weight in weights_of_one[network].items():
            assert torch.allclose(weight.float(), weights[network][name].float(), rtol=1e-4, atol=1e-5), name


def test_a_rank_that_is_killed_ends_the_other_and_all_start_again_from_the_checkpoint(
    processes: Processes, together: list[str], of_one: Processes
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
    for lane, lines in by_lane(processes).items():
        assert lines == by_lane(of_one)[lane][: len(lines)]

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


def test_two_ranks_get_by_with_one_slot_a_lane(processes: Processes, together: list[str], of_one: Processes) -> None:
    processes.train(*together, *settings("stream.slots=4"))
    assert_same(processes, of_one)


def test_a_disk_that_is_full_of_used_files_gets_a_checkpoint_from_all_ranks(
    processes: Processes, showers: Showers, server: Server
) -> None:
    names = [path.name for path in showers.write(server.folder)]
    sizes = [(server.folder / name).stat().st_size for name in names]
    options = settings(
        *(*SMALL_STREAM, "stream.lanes=2", "stream.slots=4", "stream.block_files=1"),
        f"fetcher.disk_budget_gib={2.5 * max(sizes) / 2**30}",
        "trainer.checkpoint_every=1000000",  # only those that the fetcher asks for
    )
    processes.train(*urls(server, names), *options, "--trainers", "2")
    processes.summary().assert_read(showers.events)


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


def test_trainers_that_do_not_share_the_lanes_evenly_are_refused_before_anything_starts(
    processes: Processes, together: list[str]
) -> None:
    exit_code, output = processes.run("run", *together, "--trainers", "3")
    assert exit_code == 2
    assert "local.trainers = 3, but stream.lanes = 4" in output
    assert not (processes.run_dir / "logs").exists()


def start_torchrun_rank(processes: Processes, rank: int, port: int, **environment: str) -> Process:
    """One rank as torchrun starts it, without torchrun."""
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | environment
    return processes.start("trainer", environment=variables)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_ranks_started_by_hand_meet_and_train(processes: Processes, together: list[str], of_one: Processes) -> None:
    fetcher = processes.start("fetcher", *together[:-2])
    others = [fetcher, processes.start("decoder")]
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    port = free_port()
    ranks = [start_torchrun_rank(processes, rank, port) for rank in (1, 0)]
    for process in (*ranks, *others):
        assert processes.finish(process) == 0, processes.report()
    assert by_lane(processes) == by_lane(of_one)


def test_a_rank_that_never_comes_is_named(processes: Processes, together: list[str]) -> None:
    fetcher = processes.start("fetcher", *together[:-2])
    processes.wait_in(fetcher, lambda: processes.fetcher.state != "listing", "the listing")
    alone = start_torchrun_rank(processes, 0, free_port(), ICESTREAM_TRAINER__RANKS_TIMEOUT_S="0.5")
    assert processes.finish(alone) == 2
    assert "Error: rank 1 of 2 did not connect for 0.5 s" in alone.output()
    fetcher.send(signal.SIGTERM)
    processes.finish(fetcher)
