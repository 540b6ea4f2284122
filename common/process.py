"""Behaviour of service processes: logs without secrets, stop on signals, end with the parent, children and copies."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import re
import resource
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TypeVar

from common.errors import BadInputError, IcestreamError, TransientError
from common.text import printable_lines, without_secrets

logger = logging.getLogger(__name__)


class RedactingFormatter(logging.Formatter):
    """Formatter of a service's log: time and service in each line, and no secret in it, its traceback included."""

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s {service} %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return _shown(super().format(record))


class RedactingRecord(logging.LogRecord):
    """Record with a redacted message for every handler: a library may have its own handler and formatter."""

    def getMessage(self) -> str:
        return _shown(super().getMessage())


def redact_tracebacks() -> None:
    """Print tracebacks of uncaught exceptions without tokens: a library's error may quote a request."""
    sys.excepthook = _print_traceback
    threading.excepthook = _print_thread_traceback


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(_shown("".join(traceback.format_exception(kind, error, trace))))


def _print_thread_traceback(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = args.thread.name if args.thread else "?"
    sys.stderr.write(f"Exception in thread {name}:\n")
    _print_traceback(args.exc_type, args.exc_value, args.exc_traceback)


def _shown(text: str) -> str:
    return printable_lines(without_secrets(text))


_LINES = 5
_WINDOW_S = 60.0


class Rarely:
    """Rate limit of one kind of line: a million occurrences fill no disk, and hide no other line."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._window_s = -_WINDOW_S
        self._lines = self._unsaid = 0

    def log(self, text: str, *arguments: object) -> None:
        """Log the line as a warning, or count it."""
        now_s = time.monotonic()
        if now_s - self._window_s >= _WINDOW_S:
            self._window_s, self._lines = now_s, 0
        if self._lines == _LINES:
            self._unsaid += 1
            return
        self._lines += 1
        if self._unsaid:
            text, arguments = f"{text} (and %d more like it)", (*arguments, self._unsaid)
            self._unsaid = 0
        self._logger.warning(text, *arguments)


_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|CREDS|APIKEY|COOKIE|BEARER|HEADERS|WEBHOOK"
    r"|(^|_)(KEYS?|AUTH|AUTHORIZATION|PAT|DSN|PRIVATE)(_|$)"
    r"|(PASS|BINDPW|(?<!^)(?<!^OLD)PWD)(_|$)"
    r"|^(AWS|S3|AZURE|GOOGLE|GCS|FSSPEC|HF|GITHUB|X509|WANDB|OTEL)_",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@|\b(Bearer|Basic) \S|^eyJ[\w-]+\.|-----BEGIN")
"""Pattern of secret values: a URL with a user's name, a header, a JSON web token, a key."""


def without_secret_variables(environment: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Variables without the secrets; those ``allowed`` stay (names; `*` at the end: a prefix)."""
    return {
        name: value
        for name, value in environment.items()
        if not (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))
        or any(name.startswith(rule[:-1]) if rule.endswith("*") else name == rule for rule in allowed)
    }


MAX_TRAINERS = 256
"""Most trainers of a run, of all machines."""
RANKS_FILE_VARIABLE = "_ICESTREAM_RANKS_FILE"
"""Variable set by `icestream run` for several trainers: file of the run directory in which they find each other."""

LAUNCH_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun alone sets: the name of the launch."""
RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"),
    LAUNCH_VARIABLE,
    RANKS_FILE_VARIABLE,
)
"""Variables that torchrun sets. The services get those that `icestream run` gives them, and no others."""


ROOT = Path(__file__).resolve().parents[1]


def python_command(module: str, *arguments: str, anywhere: bool = False) -> list[str]:
    """Command that runs a module with this interpreter, and imports nothing from the working directory.

    `-m` alone searches there first, where anybody's `common/` or `markdown.py` would be run. Only icestream's own
    modules are found there if it is the folder with icestream's source, which is not installed, perhaps.
    ``anywhere``: the child starts in another working directory.
    """
    is_found_here = not anywhere and (ROOT / module.partition(".")[0]).is_dir() and Path.cwd() == ROOT
    safe_path = [] if is_found_here else ["-P"]
    return [sys.executable, *safe_path, "-m", module, *arguments]


PARENT_VARIABLE = "_ICESTREAM_PARENT"
"""Variable with the process id of a parent whose services are to end with it."""


_PR_SET_PDEATHSIG = 1


BATCH_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that batch systems send before the end of a job's time."""


class StopFlag:
    """Flag that is True after a signal that asks to stop; the service checks it between two actions.

    A child of `icestream run` leaves the signals of batch systems, which may reach all processes of a job, to its
    parent: that stops the trainer first.
    """

    def __init__(self) -> None:
        self._stopped = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for number in BATCH_SIGNALS:
            signal.signal(number, signal.SIG_IGN if PARENT_VARIABLE in os.environ else self._stop)

    def __bool__(self) -> bool:
        return self._stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True


def end_with_parent(number: signal.Signals) -> None:
    """Let the kernel send ``number`` to this process when the parent dies; no effect without a parent set."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        end_with(int(parent), number)


def end_with(parent: int, number: signal.Signals) -> None:
    """Let the kernel send ``number`` to this process when the process ``parent``, which started it, dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), number)


def is_suspended(pid: int) -> bool:
    """True if a process is stopped by a signal, frozen with its control group, or in uninterruptible sleep (a file
    system that doesn't answer): its silence is caused by the machine. False if that can't be determined."""
    try:
        if stat_fields(pid)[0] in ("T", "t", "D"):
            return True
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        group = next((line.removeprefix("0::/") for line in groups if line.startswith("0::/")), "")
        return "frozen 1" in Path("/sys/fs/cgroup", group, "cgroup.events").read_text().splitlines()
    except (OSError, IndexError):
        return False


def stat_fields(pid: int) -> list[str]:
    """Fields of a process in /proc/PID/stat from its state on, the third. Raises OSError if it has ended."""
    # The name, in parentheses, may contain any text: the other fields follow the last parenthesis.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def start_logging(service: str) -> None:
    """Log to standard error; no record of any logger and no traceback of this process shows a secret."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(service))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.setLogRecordFactory(RedactingRecord)
    redact_tracebacks()


def tell_thread_errors() -> None:
    """Log an OSError that ends a library's thread (a full disk, TensorBoard's writer) in one line, without traceback.

    The user of that thread gets a separate error.
    """
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if isinstance(arguments.exc_value, OSError):
            name = arguments.thread.name if arguments.thread is not None else "a thread"
            logging.getLogger(__name__).error("%s: %s", name, arguments.exc_value)
        else:
            before(arguments)

    threading.excepthook = hook


_LOOK_S = 1.0


def end_after_stop(deadline_s: float) -> None:
    """Kill this process ``deadline_s`` after SIGTERM or SIGINT, unless it has ended. Called once, in the main thread,
    by a process that handles these signals.

    Time during which the process is suspended doesn't count.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(receiver, deadline_s), name="deadline", daemon=True).start()


def _watch(receiver: socket.socket, deadline_s: float) -> None:
    while not {signal.SIGTERM, signal.SIGINT} & set(receiver.recv(256)):
        pass
    left_s = deadline_s
    while left_s > 0:
        time.sleep(min(left_s, _LOOK_S))
        left_s -= _LOOK_S  # a suspended process takes longer for it
    logger.error("asked to stop %g s ago, and still waiting for another rank or the machine: ended", deadline_s)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os.kill(os.getpid(), signal.SIGKILL)


Say = Callable[[str], None]
Result = TypeVar("Result")

_MOST_LINE_BYTES = 32 << 20
_LAST_S = 5.0
"""Time for a copy to end by itself."""
_BY_ITSELF = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGXCPU)
"""Signals caused by the process itself; others come from outside, or from a disk that fails (SIGBUS)."""


class CopyEnded(Exception):
    """Error: the copy ended before its work did; the text is the signal's name, or its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}" if code >= 0 else signal.Signals(-code).name)
        self.code = code
        self.is_own = code >= 0 or -code in _BY_ITSELF
        """True if it caused its own end; False if it was ended from outside."""


def apart(work: Callable[[Say], None]) -> Iterator[str]:
    """Yield the lines that ``work`` says in a copy of this process. Raises CopyEnded, and OSError if there is no copy.

    The copy has this thread alone, and ends with this process or when the iterator is closed.
    """
    heard, said = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    sys.stdout.flush()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of Arrow and ZeroMQ are not used
            pid = os.fork()
    except OSError:
        os.close(heard)
        os.close(said)
        raise
    if not pid:
        _work(work, said, parent)
    os.close(said)
    status: int | None = None
    try:
        with os.fdopen(heard, "rb") as lines:
            while (line := lines.readline(_MOST_LINE_BYTES)).endswith(b"\n"):
                yield line[:-1].decode(errors="replace")
        status = os.waitpid(pid, 0)[1] if not line else None
    finally:
        if status is None:
            _end(pid)
    if code := os.waitstatus_to_exitcode(status) if status is not None else 1:
        raise CopyEnded(code)


def _work(work: Callable[[Say], None], said: int, parent: int) -> None:
    """Body of the copy, which doesn't return."""
    code = 1
    try:
        end_with(parent, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the parent, which ends this one
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # the parent tells its end in one line
        with os.fdopen(said, "w") as answers:
            work(lambda line: print(line, file=answers, flush=True))
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001  the parent tells that it ended
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _end(pid: int) -> None:
    """End a copy that is still at work: it may remove an unfinished file before it is killed."""
    os.kill(pid, signal.SIGTERM)
    pidfd = os.pidfd_open(pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pidfd, selectors.EVENT_READ)
            if not selector.select(_LAST_S):
                os.kill(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
        os.waitpid(pid, 0)


def in_a_copy(work: Callable[[], Result], kind: type[Result], name: str) -> Result:
    """Return what ``work`` returns, a model or dataclass of that ``kind``. Raises what ``work`` raises.

    Raises BadInputError that names the file if it ends the copy, and TransientError if something else does.
    """
    from pydantic import TypeAdapter, ValidationError  # the help text is printed without it

    adapter: TypeAdapter[Result] = TypeAdapter(kind)

    def told(say: Say) -> None:
        try:
            say(json.dumps({"found": adapter.dump_python(work())}))
        except IcestreamError as error:
            say(json.dumps({"error": str(error), "is_bad": isinstance(error, BadInputError)}))

    try:
        lines = list(apart(told))
        answer = json.loads(lines[-1])
        if "error" in answer:
            raise (BadInputError if answer["is_bad"] else TransientError)(str(answer["error"]))
        return adapter.validate_python(answer["found"])
    except CopyEnded as ended:
        if not ended.is_own:
            raise TransientError(
                f"{name}: the process that read it was ended by {ended}: is there enough memory?"
            ) from None
        how = str(ended)
    except (ValueError, LookupError, TypeError, ValidationError):
        how = "without an answer"
    raise BadInputError(f"{name}: damaged: it ends the process that reads it ({how}); leave it out or write it anew")
