"""Measurements of one loader: each in a process of its own, timed and watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from benchmarks.peers.accounting import Account, account, mixing
from benchmarks.peers.processes import MARK, PeakMemory, processes_of, shared_memory

LIMIT_S = 600.0
STOP_AFTER, SAVE_EVERY = 37, 10
GONE_AFTER_S = 5.0


class MeasurementFailed(Exception):
    """A measurement that ended with an error; the text is its last line."""


class Speed(NamedTuple):
    """One measurement of the speed."""

    startup_s: float
    events_per_s: float
    particles_per_s: float
    cpu_us: float
    share: float
    """Part of the events that are of the first set, where sets are mixed."""
    peak_bytes: int


class Resume(NamedTuple):
    """Behaviour of one loader when it is stopped and continued."""

    stopped: Account | str
    """After a stop in mid-epoch, with the same number of workers; a text if it failed."""
    others: Account | str
    """The same, with another number of workers."""
    ended: Account | str
    """After a stop behind the last batch of an epoch: the next epoch, with the same number of workers."""
    killed: Account | str
    """After `kill -9`, from the last saved state."""
    left: str
    """Processes and shared memory that were there 5 s after `kill -9`."""
    mixing: float
    """chi²/dof of the undisturbed stream."""


def run(task: dict[str, Any], mark: str | None = None, *, killed: bool = False) -> tuple[str, int]:
    """Output and peak memory of one measurement. Raises MeasurementFailed."""
    mark = mark or uuid.uuid4().hex
    environment = os.environ | {MARK: mark, "PEERS_STARTED_S": repr(time.time()), "OMP_NUM_THREADS": "1"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_DISABLE_IMPORT_WARNING": "1"}
    command = [sys.executable, "-m", "benchmarks.peers.one", json.dumps(task)]
    # Into files: a process that outlives the measured one would hold a pipe open.
    with TemporaryFile("w+") as output_file, TemporaryFile("w+") as errors_file, PeakMemory(mark) as memory:
        process = subprocess.Popen(
            command, env=environment, text=True, stdout=output_file, stderr=errors_file, start_new_session=True
        )
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            end_all(mark)
            process.wait()
            raise MeasurementFailed(f"did not end in {LIMIT_S:.0f} s") from None
        for file in (output_file, errors_file):
            file.seek(0)
        output, errors = output_file.read(), errors_file.read()
    if not killed:
        end_all(mark)
    # A result that was printed counts: Ray aborts at times when it is shut down in mid-epoch.
    if process.returncode and not killed and not output:
        lines = [line for line in errors.splitlines() if line.strip()]
        raise MeasurementFailed(lines[-1].strip()[:160] if lines else f"exit code {process.returncode}")
    return output, memory.bytes


def end_all(mark: str) -> None:
    """End what is left of a measurement."""
    for pid in processes_of(mark):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def measure_speed(task: dict[str, Any], seconds: float) -> Speed:
    output, peak_bytes = run(task | {"what": "speed", "seconds": seconds})
    lines = output.splitlines()  # with Ray's own among them
    results = [line for line in lines if line.startswith("{")]
    if not results:
        raise MeasurementFailed(f"no result; it ended with: {lines[-1].strip()[:160] if lines else 'nothing'}")
    return Speed(**json.loads(results[-1]), peak_bytes=peak_bytes)


def measure_prepare(task: dict[str, Any]) -> tuple[float, int]:
    """Seconds and bytes of the conversion."""
    started_s = time.monotonic()
    run(task | {"what": "prepare"})
    seconds = time.monotonic() - started_s
    files = [path.stat() for path in Path(task["prepared"]).rglob("*") if path.is_file()]
    return seconds, sum(file.st_size for file in files if file.st_nlink == 1)


def measure_resume(task: dict[str, Any], folder: Path, workers: int, other_workers: int) -> Resume:
    """Read two epochs undisturbed; one stopped and continued, with other workers, and killed; one after its end."""
    folder.mkdir(parents=True)
    base = task | {"what": "read", "workers": workers, "epochs": 1, "state_in": "", "save_every": 0}
    base |= {"stop_after": 0, "kill": False}

    def read(name: str, **changes: Any) -> list[list[int]]:
        paths = {"ids_out": str(folder / f"{name}.ids"), "state_out": str(folder / f"{name}.state")}
        run(base | paths | changes)
        return list(batches_of(folder / f"{name}.ids0"))

    undisturbed = read("undisturbed", epochs=2)
    whole, following = flat(undisturbed), flat(list(batches_of(folder / "undisturbed.ids1")))
    begun = read("begun", save_every=STOP_AFTER, stop_after=STOP_AFTER)

    def continued(name: str, of: list[int], begin: list[list[int]], state: str, **changes: Any) -> Account | str:
        try:
            rest = read(name, state_in=str(folder / f"{state}.state"), **changes)
            return account(of, flat(begin) + flat(rest))
        except (MeasurementFailed, ValueError) as error:
            return str(error)

    stopped = continued("continued", whole, begun, "begun")
    others = continued("others", whole, begun, "begun", workers=other_workers)
    read("ended", save_every=len(undisturbed), stop_after=len(undisturbed))
    ended = continued("after-end", following, [], "ended")
    if not isinstance(ended, str) and ended.lost == len(following):
        read("after-empty", state_in=str(folder / "ended.state"), epochs=2)
        ended = account(following, flat(list(batches_of(folder / "after-empty.ids1"))))
        ended = ended._replace(empty_loops=2 if ended.lost == len(following) else 1)
    left = _kill(base, folder)
    before_kill = list(batches_of(folder / "killed.ids0"))
    saved = before_kill[: STOP_AFTER // SAVE_EVERY * SAVE_EVERY]
    killed = continued("after-kill", whole, saved, "killed")
    return Resume(stopped, others, ended, killed, left, mixing([[i >> 32 for i in batch] for batch in undisturbed]))


def _kill(base: dict[str, Any], folder: Path) -> str:
    """Read until a `kill -9`; returns what is left of it 5 s later."""
    mark = uuid.uuid4().hex
    before = shared_memory()
    paths = {"ids_out": str(folder / "killed.ids"), "state_out": str(folder / "killed.state")}
    run(base | paths | {"save_every": SAVE_EVERY, "stop_after": STOP_AFTER, "kill": True}, mark, killed=True)
    deadline_s = time.monotonic() + GONE_AFTER_S
    while time.monotonic() < deadline_s and any(processes_of(mark)):
        time.sleep(0.1)
    processes = len(list(processes_of(mark)))
    files = {path: size for path, size in shared_memory().items() if path not in before}
    end_all(mark)
    parts = []
    if processes:
        parts.append(f"{processes} processes")
    if files:
        parts.append(f"{len(files)} files in /dev/shm, {sum(files.values()) / 1e6:.1f} MB")
    return ", ".join(parts) or "nothing"


def batches_of(path: Path) -> Iterator[list[int]]:
    """Ids of each batch, as one number each."""
    for line in path.read_text().splitlines():
        yield [major << 32 | minor for major, minor in json.loads(line)]


def flat(batches: list[list[int]]) -> list[int]:
    return [event for batch in batches for event in batch]
