"""`python zygote.py SOCKET PADDING`: forks icestream's processes from one that has imported everything.

Importing is two thirds of what a short run costs. A fork has the same parent, signals, output, environment, working
directory and command line as `python -m icestream VERB …` would have, and runs the same `main()`; `icestream run` forks
its children likewise, so that they are its own. A request is one message with two descriptors: what to start, as JSON,
its output, and a pipe that its process id and, at its end, its exit code are written to.

A test of what happens while a process is loaded (its environment block, permissions) starts a new interpreter instead.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PACKAGE_ROOT))
MODULE = "icestream"
"""`python -m MODULE` is the `icestream` command."""
PADDING = "." * 16_384
"""Argument that makes room for the forks' command lines."""

PRELOADED = (
    *("numpy.ma", "numpy.random", "rich.console"),
    *("services.config.root", "services.decoder.service", "services.fetcher.service"),
    *("icestream.commands.run_session", "icestream.commands.node_session"),
    *("services.supervisor.child", "services.supervisor.progress", "services.supervisor.supervisor"),
    *("services.outputs", "common.summary", "services.trainer.service", "workloads.muons.models.wgan"),
    *("torch.fx.experimental.symbolic_shapes", "torch.utils.tensorboard"),
)


class Child:
    """A fork of this process that is another command: what `subprocess.Popen` is for a new interpreter."""

    def __init__(
        self, command: Sequence[str], *, stdout: int | Any, env: Mapping[str, str], cwd: str | None = None, **_: object
    ) -> None:
        self.returncode: int | None = None
        output = stdout if isinstance(stdout, int) else stdout.fileno()
        sys.stdout.flush()
        sys.stderr.flush()
        named, naming = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            become(command, output, env, cwd)
        os.close(naming)
        os.read(named, 1)  # nothing, once it has closed this: it has its own name by then, as after exec
        os.close(named)
        self.pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self.pidfd, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            self._ended(os.waitpid(self.pid, 0)[1])
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, status: int) -> None:
        self.returncode = os.waitstatus_to_exitcode(status)
        os.close(self.pidfd)


def become(command: Sequence[str], output: int, environment: Mapping[str, str], cwd: str | None) -> NoReturn:
    """Run ``python … -m icestream VERB …`` in this fork as in a new interpreter, and end."""
    code = 1
    try:
        os.setsid()
        set_command_line(command)
        reset_signals()
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd or ".")
        forget_exit_functions()
        code = exit_code_of(run_command if MODULE in command else run_program, command)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  (as the interpreter does)
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(code)


def run_command(command: Sequence[str]) -> None:
    """`python … -m icestream VERB …` with the faults that the environment names."""
    from faulty_services import arrange_faults

    from icestream.cli import main

    sys.argv = ["icestream", *command[command.index(MODULE) + 1 :]]
    verb = sys.argv[1]
    if verb == "run":
        real: Callable[..., Any] = subprocess.Popen
        subprocess.Popen = lambda command, **options: (  # type: ignore[assignment, misc]
            Child(command, **options) if MODULE in command else real(command, **options)
        )
    arrange_faults(verb)
    main()


def run_program(command: Sequence[str]) -> None:
    """`python FILE …`."""
    sys.argv = list(command[1:])
    sys.path[:0] = [str(Path(command[1]).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_path(command[1], run_name="__main__")


def exit_code_of(run: Callable[[Sequence[str]], None], command: Sequence[str]) -> int:
    """The exit code that a new interpreter would end with."""
    try:
        run(command)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  (as the interpreter does)
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def reset_signals() -> None:
    """Handlers as after exec: what was ignored is ignored, all else has its default."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def forget_exit_functions() -> None:
    """The parent's temporary folders are the parent's."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]


def set_command_line(words: Sequence[str]) -> None:
    """The text of /proc/PID/cmdline, in the place of the one that this process was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in words) + b"\0"
    assert len(text) < end - start, "a longer PADDING is needed"
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def serve(control: socket.socket) -> None:
    """Start what is asked for, and report how it ended, until the other end of the socket is closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    request, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 2)
                    if not request:
                        return
                    output, told = descriptors
                    child = Child(stdout=output, **json.loads(request))
                    os.close(output)
                    os.write(told, f"{child.pid}\n".encode())
                    selector.register(child.pidfd, selectors.EVENT_READ, (child, told))
                else:
                    child, told = key.data
                    selector.unregister(child.pidfd)
                    os.write(told, f"{child.wait()}\n".encode())
                    os.close(told)


# ------------------------------------------------------------------ in the tests


class Forked:
    """What tests use of `subprocess.Popen`, for a command that is forked."""

    def __init__(self, command: Sequence[str], *, output: int, environment: Mapping[str, str], cwd: Path) -> None:
        reading, writing = os.pipe()
        request = json.dumps({"command": list(command), "env": dict(environment), "cwd": str(cwd)})
        try:
            socket.send_fds(zygote(), [request.encode()], [output, writing])
        finally:
            os.close(writing)
        self._told = open(reading, "rb", buffering=0)  # noqa: PTH123, SIM115
        self.pid = int(self._told.readline() or 0)
        assert self.pid, "the zygote has ended: see its output above"
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it); None while it is alive."""
        return self._await(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._await(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _await(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            with selectors.PollSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    return None
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode


@functools.cache
def zygote() -> socket.socket:
    """The socket of this session's zygote, which ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), PADDING],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=inherited | {"OMP_NUM_THREADS": "1"},
        ).returncode = 0  # it is nobody's to wait for
    return ours


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as control:
        for module in PRELOADED:
            importlib.import_module(module)
        assert threading.active_count() == 1, "a fork has no other thread than the one that forks"
        gc.freeze()
        serve(control)


if __name__ == "__main__":
    main()
