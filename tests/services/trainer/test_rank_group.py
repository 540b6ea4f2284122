"""Ranks over gloo, as real processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_rank import train
from proc import wait_for
from zygote import Forked

from common.errors import BadInputError
from common.process import is_suspended
from common.transport import StopRequested
from services.trainer import ranks as module
from services.trainer.environment import RankPlace
from services.trainer.ranks import RankLost, Ranks, interface_to

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))

PATIENCE_S = 120.0
CPU = torch.device("cpu")


def start_ranks(folder: Path, *arguments: str, size: int = 2) -> list[Forked]:
    """gloo_rank.py as each rank, with the outputs 0.log, 1.log, …"""
    here = Path(__file__).resolve().parent
    meeting = {"_ICESTREAM_RANKS_FILE": str(folder / "ranks")}
    command = [sys.executable, str(here / "gloo_rank.py"), *arguments]
    tests = here.parents[1]
    paths = os.pathsep.join(map(str, (tests.parent, tests, here)))
    processes = []
    for rank in range(size):
        environment = dict(os.environ) | meeting | {"PYTHONPATH": paths, "MASTER_ADDR": "127.0.0.1"}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        with (folder / f"{rank}.log").open("wb") as output:
            processes.append(Forked(command, output=output.fileno(), environment=environment, cwd=here))
    return processes


def end(processes: Sequence[Forked]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)


def all_ranks(folder: Path, *arguments: str, size: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """The ranks, to their ends."""
    processes = start_ranks(folder, *arguments, size=size)
    try:
        codes = [process.wait(PATIENCE_S) for process in processes]
    finally:
        end(processes)
    texts = [(folder / f"{rank}.log").read_text() for rank in range(size)]
    return [subprocess.CompletedProcess([], code, text) for code, text in zip(codes, texts, strict=True)]


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.process
def test_sums_texts_and_checkpoints_are_the_same_on_every_rank(tmp_path: Path) -> None:
    done = all_ranks(tmp_path, "sums", str(tmp_path))
    assert [one.returncode for one in done] == [0, 0], done
    one, other = told(tmp_path)
    assert one == other
    assert one == {
        "sums": [[[3.0] * 3] * 2, [1.0], 4.0],
        "short": ["é0", "é1"],
        "long": [0, 3000],
        "state": [[0, 1, 2], "é"],
        "none": {},
    }


@pytest.mark.process
def test_a_rank_that_waits_for_a_frozen_one_ends_after_it_was_asked_to_stop(tmp_path: Path) -> None:
    """It runs no handler of a signal, since its interpreter waits for gloo."""
    first, frozen = start_ranks(tmp_path, "freezes", str(tmp_path))
    try:
        wait_for(lambda: is_suspended(frozen.pid) and "waits" in (tmp_path / "0.log").read_text(), "the wait")
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == -signal.SIGKILL
        assert "asked to stop 0.05 s ago" in (tmp_path / "0.log").read_text()
    finally:
        end([first, frozen])


@pytest.mark.process
def test_two_ranks_learn_what_one_process_learns_from_the_joined_batch(tmp_path: Path) -> None:
    done = all_ranks(tmp_path, "task", str(tmp_path))
    assert [one.returncode for one in done] == [0, 0], done
    one, other = told(tmp_path)
    assert one == other, "both have the same weights, bit for bit"
    alone = train((0, 1), Ranks.alone())
    assert all(metrics["gp_norm"] > 0 for metrics in one["curve"][1:]), "the gradient penalty was at work"
    for metrics, expected in zip(one["curve"], alone["curve"], strict=True):  # type: ignore[call-overload]
        assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert one["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-5)


@pytest.mark.process
@pytest.mark.parametrize(
    ("size", "leaver", "whose"), [(2, 0, ()), (2, 1, ()), (4, 1, ()), (4, 2, ()), (3, 1, ("callers",))]
)
def test_a_rank_that_dies_is_named_by_all_others(
    tmp_path: Path, size: int, leaver: int, whose: tuple[str, ...]
) -> None:
    """Also by those that wait for the messages of another living one."""
    done = all_ranks(tmp_path, "leaves", str(tmp_path), str(leaver), *whose, size=size)
    assert done.pop(leaver).returncode == 3
    told = "another rank is gone" if whose else f"rank {leaver} is gone"
    for other in done:
        assert (other.returncode, other.stdout.splitlines()[-1]) == (0, told), done


@pytest.mark.process
def test_a_rank_that_falls_silent_between_steps_is_named_by_the_other(tmp_path: Path) -> None:
    """Its machine is frozen, or cut off: no connection breaks."""
    first, frozen = start_ranks(tmp_path, "falls-silent", str(tmp_path))
    try:
        assert first.wait(PATIENCE_S) == 0
        assert "rank 1 is gone" in (tmp_path / "0.log").read_text()
    finally:
        end([first, frozen])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_is_named(tmp_path: Path, rank: int) -> None:
    place = RankPlace(rank, 2, rank, 2, "", str(tmp_path / "ranks"))
    with pytest.raises(RankLost, match=rf"rank {1 - rank} of 2 did not connect for 0\.3 s"):
        Ranks.join(place, CPU, timeout_s=0.3, stopped=lambda: False)
    with pytest.raises(StopRequested):
        Ranks.join(place, CPU, timeout_s=PATIENCE_S, stopped=lambda: True)


def test_trainers_that_were_not_started_together_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"not started together: start them with `icestream run --trainers N`, or"):
        Ranks.join(RankPlace(0, 2, 0, 2, "gpu-a"), CPU, timeout_s=1.0, stopped=lambda: False)


BOUND_S = 20.0


class NcclGroup:
    """nccl's group, modelled: its operations, and so its destruction, never end once a rank is lost."""

    def __init__(self, abort: Callable[[], object]) -> None:
        self.abort = abort


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Ranks]:
    """One of two ranks, whose peer is gone: the exchange of texts fails, as gloo's does."""

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr("torch.distributed.gather", broken)
    monkeypatch.setattr("torch.distributed.all_reduce", broken)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: pytest.fail("it would hang"))

    def make(group: NcclGroup) -> Ranks:
        ranks = Ranks(0, 2)
        ranks._store, ranks._device_group = Store(), group
        return ranks

    return make


class Store:
    """Rendezvous store in which the other rank gives no sign of life."""

    def set(self, key: str, value: str) -> None:
        """Register this rank."""

    def check(self, keys: list[str]) -> bool:
        """False: the other one is gone."""
        raise RuntimeError


@pytest.mark.parametrize("action", [lambda ranks: ranks.gather("text"), lambda ranks: ranks.sum_([torch.ones(2)])])
def test_the_devices_group_is_aborted_and_nothing_is_destroyed(
    lost: Callable[[Any], Ranks], action: Callable[[Ranks], object]
) -> None:
    aborted = threading.Event()
    ranks = lost(NcclGroup(aborted.set))
    with pytest.raises(RankLost, match="another rank is gone"):
        action(ranks)
    assert aborted.is_set()
    ranks.close()


def test_an_abort_that_hangs_is_left_behind(
    lost: Callable[[Any], Ranks], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_ABORT_S", 0.01)
    released, ended = threading.Event(), threading.Event()

    def hangs() -> None:
        released.wait(BOUND_S)
        ended.set()

    try:
        with pytest.raises(RankLost):
            lost(NcclGroup(hangs)).gather("text")
        assert "did not give up a lost rank" in caplog.text
    finally:
        released.set()
        assert ended.wait(BOUND_S)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_the_way_to_this_machine_is_its_loopback_interface(address: str) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    assert interface_to(address) == "lo"


def test_it_is_the_interface_with_the_address_that_the_kernel_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"lo": {"127.0.0.1"}, "eth0": {"192.0.2.7"}, "ib0": {"198.51.100.7", "fe80::1"}}
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses, 1)))
    monkeypatch.setattr(module, "_addresses", addresses.__getitem__)
    for source, name in (("198.51.100.7", "ib0"), ("192.0.2.7", "eth0"), ("203.0.113.1", "")):
        monkeypatch.setattr(socket.socket, "getsockname", lambda self, source=source: (source, 1))
        assert interface_to("127.0.0.1") == name
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: socket.inet_aton("no such host"))
    assert interface_to("no-such-host") == ""
