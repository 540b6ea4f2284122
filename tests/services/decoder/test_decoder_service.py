"""What a decoder tells of errors of its machine, and that it goes on."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common import messages as m
from common.input_errors import MachineError
from common.process import StopFlag
from common.ragged import unit_arrays
from services.decoder import service
from workloads.muons.columns import MUONS

PARTS = (m.Part(0, "/data/local.parquet", 0, 0, 1, 1, 0), m.Part(1, "/cache/copy", 0, 0, 1, 1, 0, remote="https://h/f"))


class FakeTransport:
    """Two leases, then the end of the run."""

    plan_hash = "0" * 32

    def __init__(self) -> None:
        self.sent: list[m.Message] = []
        self.arena = SimpleNamespace(slot=lambda slot: np.zeros(1 << 12, np.uint8))
        self._messages = [m.Lease(k, 0, m.Unit(k, 0, 0, 0, PARTS)) for k in (7, 8)]

    def send(self, message: m.Message) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float) -> m.Message | None:
        if self._messages:
            return self._messages.pop(0)
        return m.Stop() if timeout_s else None


class FakeDecode:
    """Unit 7 meets an error."""

    workload = MUONS

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, unit: m.Unit, slot: Any, beat: Any, *, bad: Any) -> tuple[m.Layout, m.Tally]:
        if unit.k == 7:
            raise self._error
        layout = m.Layout(0, 0, 0)
        unit_arrays(slot, MUONS, layout).offsets[:] = 0
        return layout, m.Tally()


def told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[m.Message]:
    """What the decoder says if unit 7 meets the error."""
    now_s = 0.0

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    monkeypatch.setattr(service, "asked_for_too_much", lambda: False)  # the machine has no memory, the unit no fault
    monkeypatch.setattr(service.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(service.time, "sleep", sleep)
    transport = FakeTransport()
    service._take_leases(transport, 2, FakeDecode(error), StopFlag())  # type: ignore[arg-type]
    return transport.sent


@pytest.mark.parametrize(
    "error",
    [
        MachineError("/data/local.parquet: Input/output error", errno.EIO, "/data/local.parquet"),
        MachineError("/data/local.parquet: No such file", errno.ENOENT, "/data/local.parquet"),
        MachineError("/data/local.parquet: Permission denied", errno.EACCES, "/data/local.parquet"),
        OSError(errno.ENOSPC, "No space left on device", "/run/outliers/unit-7.parquet"),
        OSError(errno.ESTALE, "Stale file handle"),
        MemoryError(),
    ],
)
def test_an_error_of_the_machine_gives_the_unit_back_and_the_decoder_goes_on_after_a_pause(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello, decoding, failed, *beats, next_one, done, bye = told(error, monkeypatch)
    assert (hello, decoding, next_one, bye) == (m.Hello(2), m.Decoding(7, 7), m.Decoding(8, 8), m.Bye())
    assert isinstance(failed, m.Failed)
    assert (failed.k, failed.machine, failed.gone) == (7, True, False)
    assert failed.reason
    assert len(beats) >= 4
    assert set(beats) == {m.Beat()}
    assert isinstance(done, m.Done)


def test_a_copy_that_is_gone_is_told_so_and_costs_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    error = MachineError("/cache/copy: No such file", errno.ENOENT, "/cache/copy")
    _, _, failed, next_one, *_ = told(error, monkeypatch)
    assert failed == m.Failed(7, 7, "/cache/copy: No such file", gone=True)
    assert next_one == m.Decoding(8, 8)
