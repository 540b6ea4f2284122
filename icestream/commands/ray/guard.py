"""Guard of one node: a process that starts it, and ends it when whoever asked for it is gone.

`python -m icestream.commands.ray.guard` reads one line of JSON from standard input: `target` (module:function),
`arguments` (its sys.argv), `config` (text of a TOML file, or null) and `kills_after_s`. So no argument, which may hold
a password, is seen in a list of processes. It runs the target in a process of its own and writes its exit code to
standard output.
The end of standard input asks for the node's end: SIGTERM, and after that time SIGKILL.

The end of the pipe is the one message that nobody has to send: it comes also when the other end is killed. The guard
leaves its parent, since a worker of Ray kills its children as it ends, before they could write a checkpoint.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any, cast

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that reach all processes when a machine shuts down: the guard outlives the node, which they end."""


def main() -> None:
    """Start the node, and wait for its end."""
    job = json.loads(sys.stdin.buffer.readline())
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    guard = os.getpid()
    node = os.fork()
    if node == 0:
        return run_node(job, guard)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    code = watch(node, job["kills_after_s"])
    with suppress(OSError):
        os.write(sys.stdout.fileno(), f"{code}\n".encode())
    os._exit(0)


def run_node(job: dict[str, Any], guard: int) -> None:
    """Become the node: call the target. It ends with the guard."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    for number in _ENDING:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if os.getppid() != guard:  # it died before the call
        os._exit(128 + signal.SIGTERM)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.argv = list(job["arguments"])
    if job["config"] is not None:
        config = os.memfd_create("config.toml")
        os.write(config, job["config"].encode())
        sys.argv += ["-c", f"/dev/fd/{config}"]
    module, _, name = job["target"].partition(":")
    cast(Any, getattr(importlib.import_module(module), name))()


def watch(node: int, kills_after_s: float) -> int:
    """Exit code of the node (below 0: minus the signal that killed it), once it and all that it left have ended."""
    pidfd = os.pidfd_open(node)
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    waiting.register(sys.stdin.fileno(), select.POLLIN)
    if not any(fd == pidfd for fd, _ in waiting.poll()):
        os.kill(node, signal.SIGTERM)
        waiting.unregister(sys.stdin.fileno())
        if not waiting.poll(1000 * kills_after_s):
            os.killpg(node, signal.SIGKILL)
    os.waitid(os.P_PID, node, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError):
        os.killpg(node, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(node, 0)[1])


if __name__ == "__main__":
    main()
