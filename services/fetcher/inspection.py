"""Inspection of staged files: footers are read in a few processes with a memory limit, see main().

An answer of such a process, or its own limit, concerns the file. A signal from outside, or a failure to start it,
concerns the machine: the file is then tried again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.config import SourceConfig, StreamConfig
from common.errors import BadInputError, MachineError, TransientError, machine_errno, one_line, reason_of
from common.files.local import BadFileError
from common.memory import limit_memory
from common.messages import shortened
from common.plan import Footer, SlotCapacity, footer_of, groups_of, working_bytes
from common.process import PARENT_VARIABLE, CopyEnded, end_with_parent, python_command
from workloads import registry

_COMMAND = python_command("services.fetcher.inspection")
_MOST_PROCESSES = 2
_SOON_S = 0.5
"""Time for which the first process must be busy before a second is started: each costs 60 MiB, and time to start."""
_MOST_ANSWER_BYTES = 32 << 20
_TRIES = 3
_LAST_S = 5.0
"""Time for a process to end after the end of its output."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "LANG", "LC_ALL", "HDF5_PLUGIN_PATH", "TMPDIR")
"""Variables that the process inherits from the fetcher: none contains a secret."""

_Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
_Spans = Annotated[list[tuple[_Count, _Count, _Count, _Count]], Field(max_length=1 << 16)]


class _Answer(BaseModel):
    """Answer line of the process. A file may have taken over the process, so it is checked like any message."""

    model_config = ConfigDict(extra="forbid")

    ready: bool = False
    footer: Annotated[list[tuple[_Count, _Count, _Spans]], Field(max_length=1 << 17)] | None = None
    bad: Annotated[str, Field(max_length=4000)] | None = None
    rows: _Count = 0
    machine: Annotated[str, Field(max_length=4000)] | None = None
    errno: _Count = 0


class _Died(Exception):
    """Error: the process ended."""


class _Wrong(_Died):
    """Error: an invalid answer; the file is to blame, however the process ends then."""


class Inspection:
    """Reader of footers, called in the fetcher's worker threads. Processes are started when they are first needed."""

    def __init__(
        self, workload: str, source: SourceConfig, stream: StreamConfig, *, memory_bytes: int | None = None
    ) -> None:
        memory_bytes = memory_bytes or working_bytes(stream)
        settings = {
            "workload": workload,
            "source": source.model_dump(mode="json"),
            "stream": stream.model_dump(mode="json"),
            "memory_bytes": memory_bytes,
        }
        self._settings = json.dumps(settings)
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        self._all: set[_Process] = set()
        self._starting = False
        self._closed = False

    def __call__(self, path: Path) -> Footer:
        """Return the footer of the file. Raises BadFileError, and TransientError if it must be tried again."""
        why = ""
        for _ in range(_TRIES):
            process = self._take()
            try:
                footer = _footer_of(process.ask(json.dumps({"path": str(path)})), path)
            except _Died as error:
                end = self._end(process)
                is_wrong = isinstance(error, _Wrong)
                if self._closed or not (is_wrong or end.is_own):
                    raise TransientError(f"the process that inspects it: {error}, {end}") from None
                if end.code == -signal.SIGXCPU:
                    raise BadFileError("it needs too much CPU time to inspect") from None
                why = str(error if is_wrong else end)
                continue
            except (BadFileError, MachineError):
                self._give_back(process)
                raise
            self._give_back(process)
            return footer
        raise BadFileError(f"it ends the process that inspects it ({why}, {_TRIES} times)")

    def close(self) -> None:
        """End all processes: a thread that waits for an answer gets a TransientError."""
        with self._lock:
            self._closed = True
            for process in self._all:
                process.kill()
        with contextlib.suppress(queue.Empty):
            while True:
                self._end(self._idle.get_nowait())

    def _take(self) -> _Process:
        """Return an idle or new process. Raises TransientError."""
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                return self._idle.get(timeout=_SOON_S if self._all else 0.0)
            process = self._start()
            if process is not None:
                return process
        raise TransientError("the fetcher ends")

    def _start(self) -> _Process | None:
        """New process, ready for use; None if there are enough of them, or one is starting. Raises TransientError."""
        with self._lock:
            if self._closed or self._starting or len(self._all) >= _MOST_PROCESSES:
                return None
            try:
                process = _Process()
            except OSError as error:
                raise TransientError(f"no process can be started to inspect it: {reason_of(error.errno)}") from None
            self._all.add(process)
            self._starting = True
        try:
            if process.ask(self._settings).ready:
                return process
            said = "another answer"
        except _Died as error:
            said = str(error)
        finally:
            self._starting = False
        raise TransientError(f"the process to inspect it could not start: {said}, {self._end(process)}")

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            if not self._closed:
                self._idle.put(process)
                return
        self._end(process)

    def _end(self, process: _Process) -> CopyEnded:
        """End the process, and return how it ended."""
        with self._lock:
            self._all.discard(process)
        return CopyEnded(process.end())


class _Process:
    """Inspection process. Raises OSError if it can't be started."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries print content of files
            env={**environment, PARENT_VARIABLE: str(os.getpid()), "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )

    def ask(self, line: str) -> _Answer:
        """Answer to a line. Raises _Died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline(_MOST_ANSWER_BYTES)
        except (OSError, ValueError):  # a broken pipe, or closed by end()
            answer = b""
        if not answer.endswith(b"\n"):
            if len(answer) == _MOST_ANSWER_BYTES or not self._has_ended():
                raise _Wrong("an answer without end")
            raise _Died("no answer")
        try:
            return _Answer.model_validate_json(answer)
        except ValidationError:
            raise _Wrong("an answer that is none") from None

    def kill(self) -> None:
        """Kill the process; another thread may wait for its answer."""
        self._process.kill()

    def end(self) -> int:
        """Kill the process unless it has ended; its return code."""
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        return code

    def _has_ended(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_S)
        return self._process.returncode is not None


def _footer_of(answer: _Answer, path: Path) -> Footer:
    if answer.bad is not None:
        raise BadFileError(answer.bad, answer.rows)
    if answer.machine is not None:
        raise MachineError(answer.machine, answer.errno, str(path))
    if answer.footer is None:
        raise _Wrong("another answer")
    footer = footer_of((rows, particles, *spans) for rows, particles, spans in answer.footer)
    if any(group.spans and sum(span.rows for span in group.spans) != group.rows for group in footer.row_groups):
        raise _Wrong("spans that don't cover their row group")
    return footer


# -------------------------------------------------------------- in the process


CPU_S = 600
"""Most CPU time for one file: 10 million rows take 10 to 30 s."""


def main() -> None:
    """Answer until standard input ends: `python -m services.fetcher.inspection`, which the fetcher starts.

    The first line defines what to read; each other one, a JSON object with a path, is answered by one JSON line.
    Libraries that parse untrusted files run here: with a limit of memory, and of CPU time for each file, without
    secrets, and no longer than the fetcher.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the fetcher, which ends this process
    end_with_parent(signal.SIGKILL)
    Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel kills this process before the fetcher
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a library is no answer
    settings = json.loads(sys.stdin.readline())
    stream = StreamConfig.model_validate(settings["stream"])
    workload = registry.workload(settings["workload"]).schema.stored_as(SourceConfig.model_validate(settings["source"]))
    from common.files.by_content import read_footer, start_arrow

    capacity = SlotCapacity(workload, stream)
    start_arrow()
    limit_memory(settings["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def answer(path: Path) -> dict[str, Any]:
        try:
            footer = read_footer(path, workload, stream, capacity)
        except BadFileError as error:
            return {"bad": shortened(str(error)), "rows": error.rows}
        except BadInputError as error:
            return {"bad": shortened(str(error))}
        except MachineError as error:
            return {"machine": shortened(str(error)), "errno": error.number}
        except (OSError, MemoryError) as error:
            return {"machine": shortened(f"{path}: {one_line(error)}"), "errno": machine_errno(error)}
        except Exception as error:  # noqa: BLE001  any error from the bytes of a file ends this file, not the run
            return {"bad": f"it can't be inspected: {error!r}"[:300]}
        return {"footer": [(rows, particles, spans) for rows, particles, *spans in groups_of(footer)]}

    print(json.dumps({"ready": True}), file=answers, flush=True)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    for line in sys.stdin:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(usage.ru_utime + usage.ru_stime) + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
        print(json.dumps(answer(Path(json.loads(line)["path"]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
