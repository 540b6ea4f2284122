"""After the first death of a decoder: the file that ends it is named, and the events of the others live."""

from __future__ import annotations

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
from common.files.by_content import ContentReader
from common.plan import SlotCapacity
from common.process import StopFlag
from services.decoder import service
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS

pytestmark = pytest.mark.process

STREAM = StreamConfig(batch_events=4, max_particles=64, max_particles_per_event=8, unit_events=64, slot_mib=0.25)


class Transport:
    """A lease of a unit that has failed, then the end of the run."""

    plan_hash = "0" * 32

    def __init__(self, unit: m.Unit, failures: int) -> None:
        self.sent: list[m.Message] = []
        slot = np.zeros(STREAM.slot_bytes, np.uint8)
        self.arena = SimpleNamespace(slot=lambda number: slot)
        self._messages = [m.Lease(1, 0, unit, failures)]

    def send(self, message: m.Message) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float) -> m.Message | None:
        if self._messages:
            return self._messages.pop(0)
        return m.Stop() if timeout_s else None


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
    assert SlotCapacity(MUONS, STREAM).fits(unit.rows, 20)
    transport = Transport(unit, failures)
    decode = Decode(MUONS, STREAM, 0, folder, ContentReader(MUONS))
    service._take_leases(transport, 1, decode, StopFlag())  # type: ignore[arg-type]
    (end,) = (one for one in transport.sent if isinstance(one, m.Done | m.Failed))
    return end, transport.sent


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


def test_a_unit_whose_decoder_was_killed_for_another_reason_is_what_it_would_have_been(
    tmp_path: Path, killer: dict[str, signal.Signals]
) -> None:
    tried, _ = answer(tmp_path)
    at_once, _ = answer(tmp_path, failures=0)
    assert tried == at_once


def test_a_trial_that_is_ended_from_outside_blames_no_file(tmp_path: Path, killer: dict[str, signal.Signals]) -> None:
    killer["1.parquet"] = signal.SIGKILL
    end, _ = answer(tmp_path)
    assert isinstance(end, m.Failed)
    assert "the process that tries its parts was ended by SIGKILL" in end.reason
    assert not end.machine
