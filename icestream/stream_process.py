"""Process that supervises the fetcher and the decoders of one `icestream.stream`, and ends with its caller.

The caller's end is seen through a pidfd, not by the kernel's parent-death signal: that is sent at the end of the
*thread* that started a process, and a caller may make its stream in any thread.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
from pathlib import Path

from common.errors import IcestreamError
from common.locks import RunLock, patience
from common.paths import own_files_only
from common.process import redact_tracebacks
from common.summary import FAILED_EXIT_CODE
from common.text import shown
from services.config.root import load_config
from services.supervisor.child import secrets_allowed, service_command
from services.supervisor.supervisor import Supervisor

_LOCK_WAIT_S = 10.0
"""Time for the processes of a caller that was just killed to end."""


def serve(run_dir: Path, caller: int, *, temporary: bool) -> int:
    """Supervise until the caller ends or SIGTERM; returns the exit code.

    A temporary run directory is deleted if the caller has not lived to do that.
    """
    try:
        ended = end_with_caller(caller)
        config = load_config(run_dir)
        with RunLock(run_dir, "run", "icestream.stream", patience(_LOCK_WAIT_S)):
            # The caller is the trainer.
            local = config.local.model_copy(update={"trainers": 0})
            supervisor = Supervisor(
                run_dir,
                local,
                lambda name: service_command(name, run_dir, config.stream.shards),
                shards=config.stream.shards_of_node(),
                secrets=secrets_allowed(config),
                say=lambda text: print(text, flush=True),  # noqa: T201  the log
            )
            outcome = supervisor.run()
        if outcome.error:
            print(f"Error: {outcome.error}", flush=True)  # noqa: T201
        if temporary and ended.is_set():
            shutil.rmtree(run_dir, ignore_errors=True)
        return outcome.exit_code
    except IcestreamError as error:
        print(f"Error: {shown(' '.join(str(error).split()))}", flush=True)  # noqa: T201
        return 2


def end_with_caller(caller: int) -> threading.Event:
    """Send SIGTERM to this process once process ``caller``, its parent, has ended; the event is set then."""
    ended = threading.Event()

    def watch(descriptor: int) -> None:
        select.select([descriptor], [], [])
        ended.set()
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        descriptor = os.pidfd_open(caller)
    except ProcessLookupError:
        descriptor = -1
    if descriptor < 0 or os.getppid() != caller:
        sys.exit(FAILED_EXIT_CODE)
    threading.Thread(target=watch, args=(descriptor,), daemon=True).start()
    return ended


if __name__ == "__main__":
    redact_tracebacks()
    own_files_only()
    folder, pid, kind = sys.argv[1:]
    sys.exit(serve(Path(folder), int(pid), temporary=kind == "temporary"))
