"""`python undead.py VERB …` is `icestream VERB …` whose SIGSTOP and SIGKILL are accepted, and who never ends of them.

So looks a process in uninterruptible sleep (a hung NFS server): SIGKILL is pending, its sockets and memory stay.
Uninterruptible sleep itself needs a broken device. But a traced process stops once more when it has been killed, before
it closes anything (PTRACE_O_TRACEEXIT), until its tracer lets it go on: this process, which ends with SIGTERM.

Exit code NOT_PERMITTED where tracing isn't.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

NOT_PERMITTED = 77
_CONT, _SEIZE, _TRACEEXIT, _EVENT_EXIT = 7, 0x4206, 0x40, 6


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    may_start, traced = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(traced)
        if not os.read(may_start, 1):
            os._exit(1)
        os.execv(sys.executable, [sys.executable, "-m", "icestream", *sys.argv[1:]])
    if libc.ptrace(_SEIZE, child, None, _TRACEEXIT):
        sys.exit(NOT_PERMITTED)
    os.write(traced, b"!")
    while True:
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            sys.exit(1)  # it has ended all the same
        number, event = os.WSTOPSIG(status), status >> 16
        if event == _EVENT_EXIT:
            signal.pause()
        elif number != signal.SIGSTOP:
            libc.ptrace(_CONT, child, None, 0 if event else number)


if __name__ == "__main__":
    main()
