"""Nothing that a process writes by itself shows a token, or steers a terminal: no log, of no library, no traceback."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType

from common.printable import printable_lines
from common.redact import without_secrets


class RedactingFormatter(logging.Formatter):
    """Redacts the whole text of a record, its traceback included, whoever logged it."""

    def format(self, record: logging.LogRecord) -> str:
        return _shown(super().format(record))


class RedactingRecord(logging.LogRecord):
    """Redacts the message wherever it goes: a library may have a handler of its own, with a formatter of its own."""

    def getMessage(self) -> str:
        return _shown(super().getMessage())


def redact_everything() -> None:
    """Make every log record and every traceback of this process pass through `without_secrets`."""
    logging.setLogRecordFactory(RedactingRecord)
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, RedactingFormatter):
            old = handler.formatter
            handler.setFormatter(RedactingFormatter(old._fmt, old.datefmt) if old else RedactingFormatter())
    redact_tracebacks()


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
