"""What a decoder tells of errors of its machine, and of files that end processes; and that it goes on."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoded_files import planned
from muon_files import make_events, write_events

from common import messages as m
from common.config import StreamConfig
from common.errors import MachineError
from common.files.by_content import ContentReader
from common.process import StopFlag
from common.unit_arrays import unit_arrays
from services.decoder import service
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS

STREAM = StreamConfig(batch_events=4, max_particles=64, max_particles_per_event=8, unit_events=64, slot_mib=0.25)
PARTS = (m.Part(0, "/data/local.parquet", 0, 0, 1, 1, 0), m.Part(1, "/cache/copy", 0, 0, 1, 1, 0, remote="https://h/f"))


class FakeTransport:
    """Some leases, then the end of the run."""

    plan_hash = "0" * 32

    def __init__(self, *leases: m.Lease) -> None:
        self.sent: list[m.Message] = []
        slot = np.zeros(STREAM.slot_bytes, np.uint8)
        self.arena = SimpleNamespace(slot=lambda number: slot)
        self._messages = list(leases)

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
    transport = FakeTransport(*(m.Lease(k, 0, m.Unit(k, 0, 0, 0, PARTS)) for k in (7, 8)))
    service._take_leases(transport, FakeDecode(error), StopFlag())  # type: ignore[arg-type]
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


# -------------------------------------------------------------- after the first death of a decoder


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, signal.Signals]:
    """Files, by name, that end a process which reads them by a signal."""
    numbers: dict[str, signal.Signals] = {}
    real = ContentReader.read

    def read(self: ContentReader, parts: Any, *arguments: Any, **options: Any) -> Any:
        for part in parts:
            if number := numbers.get(Path(part.path).name):
                os.kill(os.getpid(), number)
        return real(self, parts, *arguments, **options)

    monkeypatch.setattr(ContentReader, "read", read)
    return numbers


def answer(folder: Path, failures: int = 1) -> tuple[m.Message, list[m.Message]]:
    """What the decoder says at its end, and all it says."""
    paths = [write_events(folder / f"{i}.parquet", make_events([2, 0, 3], first=10 * i)) for i in range(4)]
    (unit,) = planned(paths, MUONS, STREAM)
    transport = FakeTransport(m.Lease(1, 0, unit, failures))
    decode = Decode(MUONS, STREAM, 0, folder, ContentReader(MUONS))
    service._take_leases(transport, decode, StopFlag())  # type: ignore[arg-type]
    (end,) = (one for one in transport.sent if isinstance(one, m.Done | m.Failed))
    return end, transport.sent


@pytest.mark.process
def test_the_file_that_ends_a_decoder_is_named_and_the_events_of_the_others_live(
    tmp_path: Path, killer: dict[str, signal.Signals]
) -> None:
    killer |= {"1.parquet": signal.SIGSEGV, "3.parquet": signal.SIGABRT}
    end, said = answer(tmp_path)
    assert isinstance(end, m.Done)
    assert (end.tally.rows_read, end.tally.quarantined, end.layout.events) == (12, 6, 6)
    reasons = {one.file: one.reason for one in end.tally.bad}
    assert sorted(reasons) == [1, 3]
    assert reasons[1].endswith("1.parquet: row group 0 ends the process that decodes it (SIGSEGV)")
    assert reasons[3].endswith("3.parquet: row group 0 ends the process that decodes it (SIGABRT)")
    assert sum(isinstance(one, m.Beat) for one in said) >= 2


@pytest.mark.process
def test_a_unit_whose_decoder_was_killed_for_another_reason_is_what_it_would_have_been(
    tmp_path: Path, killer: dict[str, signal.Signals]
) -> None:
    tried, _ = answer(tmp_path)
    at_once, _ = answer(tmp_path, failures=0)
    assert tried == at_once


@pytest.mark.process
def test_a_trial_that_is_ended_from_outside_blames_no_file(tmp_path: Path, killer: dict[str, signal.Signals]) -> None:
    killer["1.parquet"] = signal.SIGKILL
    end, _ = answer(tmp_path)
    assert isinstance(end, m.Failed)
    assert "the process that tries its parts was ended by SIGKILL" in end.reason
    assert not end.machine
