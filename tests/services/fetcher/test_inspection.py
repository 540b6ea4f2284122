from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import h5py
import hostile_files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdf5_files import write_hdf5
from muon_files import make_events, write_events

from common.config import MIB, SourceConfig, StreamConfig
from common.errors import MachineError, TransientError
from common.files.by_content import read_footer
from common.files.local import BadFileError
from common.messages import MAX_REASON_BYTES
from common.plan import SlotCapacity
from services.fetcher import inspection as module
from services.fetcher.inspection import Inspection
from workloads.muons.columns import MUONS

pytestmark = pytest.mark.process

STREAM = StreamConfig()
LIMIT = 96 * MIB
"""On top of what the process has: small, so that the files may be small."""
SIZE = 12_000_000
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def inspect() -> Iterator[Inspection]:
    made = Inspection("muons", SourceConfig(), STREAM, memory_bytes=LIMIT)
    yield made
    made.close()


def private_peak_bytes(inspection: Inspection) -> int:
    """The peak of the resident memory of its processes."""
    peaks = [0]
    for process in inspection._all:
        status = Path(f"/proc/{process._process.pid}/status").read_text().splitlines()
        peaks += [int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:")]
    return max(peaks)


def test_a_process_finds_what_this_one_would(tmp_path: Path, inspect: Inspection) -> None:
    capacity = SlotCapacity(MUONS, STREAM)
    large = [1] * 5 + [178_000] * 12
    for path in (
        write_events(tmp_path / "f.parquet", make_events([1, 2, 3] * 50), row_group_rows=40),
        hostile_files._write(tmp_path / "g.parquet", hostile_files.muons_of(large)),
        write_hdf5(tmp_path / "f.h5", make_events([1, 2, 3] * 50)),
    ):
        footer = inspect(path)
        assert footer == read_footer(path, MUONS, STREAM, capacity)
        assert footer.rows in (17, 150)
    with pytest.raises(MachineError) as told:  # the kernel's errors are passed on
        inspect(tmp_path / "nowhere.parquet")
    assert (told.value.number, told.value.path) == (2, str(tmp_path / "nowhere.parquet"))


def test_a_limit_of_memory_below_the_stack_of_a_thread_is_told_as_the_memory_that_the_file_needs(
    tmp_path: Path,
) -> None:
    path = hostile_files._write(tmp_path / "f.parquet", hostile_files.muons_of([1] * 5 + [60_000] * 12))
    inspect = Inspection("muons", SourceConfig(), STREAM, memory_bytes=4 * MIB)
    try:
        with pytest.raises(BadFileError, match="needs more than 4 MiB of memory to inspect"):
            inspect(path)
    finally:
        inspect.close()


def test_a_file_cannot_say_that_the_machine_is_at_fault(tmp_path: Path, inspect: Inspection) -> None:
    """Arrow quotes it in an error of its own: the file would be tried again for ever."""
    words = "Unknown error: Failed to launch worker thread"
    extension = {"ARROW:extension:name": "arrow.bool8", "ARROW:extension:metadata": words}
    table = pq.read_table(write_events(tmp_path / "good.parquet", make_events([1, 2])))
    note = pa.field("note", pa.int8(), metadata=extension)
    pq.write_table(table.append_column(note, pa.array([0, 0], pa.int8())), tmp_path / "bad.parquet")
    with pytest.raises(BadFileError, match=words):
        inspect(tmp_path / "bad.parquet")


BAD = "at most|needs more than 96 MiB|damaged: .*(pages|page of|row groups and columns)|filter returned failure"
COSTS_LITTLE = {
    *("huge strings", "gzip zeros", "dictionary"),
    *("many columns", "many links", "many row groups", "many chunks"),
}
"""Not refused as hostile at this size, or for another reason."""


@pytest.mark.parametrize("trick", [*hostile_files.PARQUET, *hostile_files.HDF5])
def test_a_file_that_asks_for_much_memory_is_named_or_costs_little(
    tmp_path: Path, inspect: Inspection, trick: str
) -> None:
    path = tmp_path / "file"
    make = {**hostile_files.PARQUET, **hostile_files.HDF5}[trick]
    make(path, SIZE // 100 if trick.startswith("many ") else SIZE)
    before = private_peak_bytes(inspect)
    if trick in COSTS_LITTLE:
        with contextlib.suppress(BadFileError):
            inspect(path)
    else:
        with pytest.raises(BadFileError, match=BAD):
            inspect(path)
    assert private_peak_bytes(inspect) <= max(before, 100 * MIB) + LIMIT + 16 * MIB
    good = write_events(tmp_path / "good.parquet", make_events([1, 2, 3]))
    assert inspect(good).rows == 3, "the next file is none the worse"


@pytest.mark.parametrize(
    ("number", "reason", "tries"),
    [
        (signal.SIGSEGV, r"ends the process that inspects it \(SIGSEGV, 3 times\)", "xxx"),
        (signal.SIGXCPU, "it needs too much CPU time to inspect", "x"),
    ],
)
def test_a_file_that_crashes_the_process_three_times_or_takes_too_long_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str, tries: str
) -> None:
    child_that(tmp_path, monkeypatch, f"os.kill(os.getpid(), {int(number)})")
    inspection = Inspection("muons", SourceConfig(), STREAM)
    with pytest.raises(BadFileError, match=reason):
        inspection(tmp_path / "f.parquet")
    assert (tmp_path / "started").read_text() == tries
    inspection.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGBUS])
def test_a_process_that_is_ended_from_outside_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    child_that(tmp_path, monkeypatch, f"os.kill(os.getpid(), {int(number)})")
    inspection = Inspection("muons", SourceConfig(), STREAM)
    with pytest.raises(TransientError, match=number.name):
        inspection(tmp_path / "f.parquet")
    assert (tmp_path / "started").read_text() == "x"
    child_that(tmp_path, monkeypatch, """print('{"footer": [[1, 2, []]]}', flush=True)""")
    assert inspection(tmp_path / "f.parquet").rows == 1, "the next try has a new process"
    inspection.close()


def child_that(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """In the place of the real process: one that does something when it is asked for a file."""
    script = folder / "child.py"
    script.write_text(
        f"import os, sys, signal\nopen({str(folder / 'started')!r}, 'a').write('x')\n"
        "sys.stdin.readline()\nprint('{\"ready\": true}', flush=True)\nsys.stdin.readline()\n" + does + "\n"
    )
    monkeypatch.setattr(module, "_COMMAND", [sys.executable, "-S", str(script)])


def test_a_machine_that_can_start_no_process_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    inspection = Inspection("muons", SourceConfig(), STREAM)
    with pytest.raises(TransientError, match="no process can be started to inspect it: Resource temporarily"):
        inspection(tmp_path / "f.parquet")


@pytest.mark.parametrize(
    "does",
    [
        """os.write(1, b'{"footer": [[1, -1, []]]}\\n')""",
        """os.write(1, b'{"footer": [[1, -1, []]]}\\n')\nsignal.pause()""",
        """os.write(1, b'{"footer": [[10, 10, [[0, 4, 4, 0]]]]}\\n')""",
        """os.write(1, b'{"bad": "' + b"x" * 5000 + b'"}\\n')""",
        "os.write(1, b'\\xff\\n')",
        "while True: os.write(1, b'x' * 65536)",
        "os.close(1)\nsignal.pause()",
    ],
)
def test_an_answer_that_cannot_be_never_ends_or_never_comes_ends_the_process_and_the_file_after_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """A file may have taken the process over: it gets no further."""
    monkeypatch.setattr(module, "_LAST_S", 0.2)
    child_that(tmp_path, monkeypatch, does)
    inspection = Inspection("muons", SourceConfig(), STREAM)
    with pytest.raises(BadFileError, match="ends the process that inspects it"):
        inspection(tmp_path / "f.parquet")
    inspection.close()
    assert (tmp_path / "started").read_text() == "xxx"


@pytest.mark.parametrize("kind", ["parquet", "hdf5"])
def test_a_fault_that_takes_many_words_is_told_in_few(tmp_path: Path, inspect: Inspection, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "parquet":
        pq.write_table(pa.table({"\N{SNOWMAN}" * 5000: [1.0]}), path)
    else:
        with h5py.File(path, "w") as file:
            file["counts"], file["muons"] = np.ones(3, np.int32), np.zeros((3, 5))
            file["primaries"] = np.zeros(3, [(f"field{i}_{'z' * 20}", "f4") for i in range(200)])
    with pytest.raises(BadFileError) as told:
        inspect(path)
    assert "ends the process" not in str(told.value)
    assert len(str(told.value).encode()) <= MAX_REASON_BYTES


def test_the_process_has_no_secret_and_ends_with_its_fetcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEARER_TOKEN", "secret")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    inspection = Inspection("muons", SourceConfig(), STREAM)
    inspection(write_events(tmp_path / "f.parquet", make_events([1])))
    (process,) = inspection._all
    assert b"secret" not in Path(f"/proc/{process._process.pid}/environ").read_bytes()
    assert Path(f"/proc/{process._process.pid}/oom_score_adj").read_text() == "1000\n"
    descriptors = [str(link.readlink()) for link in Path(f"/proc/{process._process.pid}/fd").iterdir()]
    assert not [name for name in descriptors if not name.startswith(("pipe:", "/dev/null"))]
    assert process._process.stdin is not None
    process._process.stdin.close()
    assert process._process.wait(PATIENCE_S) == 0
    inspection.close()


def test_a_fetcher_that_ends_waits_for_no_inspection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "busy")
    child_that(tmp_path, monkeypatch, f"open({str(tmp_path / 'busy')!r}, 'w')\nsignal.pause()")
    inspection = Inspection("muons", SourceConfig(), STREAM)
    told: list[BaseException] = []

    def run() -> None:
        try:
            inspection(tmp_path / "f.parquet")
        except TransientError as error:
            told.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    (tmp_path / "busy").open().close()  # waits until the process opens it, too
    inspection.close()
    thread.join(PATIENCE_S)
    assert len(told) == 1
