"""Inspection of staged files: footers are read in a few processes with a memory limit, see inspection_child.py.

An answer of such a process, or its own limit, concerns the file. A signal from outside, or a failure to start it,
concerns the machine: the file is then tried again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.bounds import working_bytes
from common.config import SourceConfig, StreamConfig
from common.errors import TransientError
from common.files.bad_file import BadFileError
from common.input_errors import MachineError, reason_of
from common.plan import Footer, RowGroup, Span
from common.process import PARENT_VARIABLE
from common.python_command import python_command

_COMMAND = python_command("services.fetcher.staging.inspection_child")
_MOST_PROCESSES = 2
_SOON_S = 0.5
"""Time for which the first process must be busy before a second is started: each costs 60 MiB, and time to start."""
_MOST_ANSWER_BYTES = 32 << 20
_TRIES = 3
_LAST_S = 5.0
"""Time for a process to end after the end of its output."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "LANG", "LC_ALL", "HDF5_PLUGIN_PATH", "TMPDIR")
"""Variables that the process inherits from the fetcher: none contains a secret."""
_BY_ITSELF = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGXCPU)
"""Signals caused by the process itself; others come from outside, or from a disk that fails (SIGBUS)."""

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
        """Footer of the file. Raises BadFileError, and TransientError if it must be tried again."""
        why = ""
        for _ in range(_TRIES):
            process = self._take()
            try:
                footer = _footer_of(process.ask(json.dumps({"path": str(path)})), path)
            except _Died as error:
                end = self._end(process)
                is_wrong = isinstance(error, _Wrong)
                if self._closed or not (is_wrong or _is_own(end)):
                    raise TransientError(f"the process that inspects it: {error}, {_end_text(end)}") from None
                if end == -signal.SIGXCPU:
                    raise BadFileError("it needs too much CPU time to inspect") from None
                why = str(error) if is_wrong else _end_text(end)
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
        """Idle or new process. Raises TransientError."""
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
        ended = _end_text(self._end(process))
        raise TransientError(f"the process to inspect it could not start: {said}, {ended}")

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            if not self._closed:
                self._idle.put(process)
                return
        self._end(process)

    def _end(self, process: _Process) -> int:
        """End the process; its return code."""
        with self._lock:
            self._all.discard(process)
        return process.end()


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

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

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
    groups = tuple(
        RowGroup(rows, particles, tuple(Span(*span) for span in spans)) for rows, particles, spans in answer.footer
    )
    if any(group.spans and sum(span.rows for span in group.spans) != group.rows for group in groups):
        raise _Wrong("spans that don't cover their row group")
    return Footer(groups)


def _is_own(code: int) -> bool:
    """True if the process caused its own end; False if it was ended from outside."""
    return code >= 0 or -code in _BY_ITSELF


def _end_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
