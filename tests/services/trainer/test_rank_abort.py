"""A lost rank ends the device's group at once: nothing waits for nccl's operations with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from services.trainer.ranks import ranks as module
from services.trainer.ranks.ranks import RankLost, Ranks

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

    monkeypatch.setattr("torch.distributed.all_gather", broken)
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
    with pytest.raises(RankLost, match="rank 0 is gone"):
        action(ranks)
    assert aborted.is_set()
    ranks.close()


def test_an_abort_that_fails_hides_no_lost_rank(lost: Callable[[Any], Ranks]) -> None:
    def fails() -> None:
        raise RuntimeError("unhandled system error")

    with pytest.raises(RankLost):
        lost(NcclGroup(fails)).gather("text")


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
