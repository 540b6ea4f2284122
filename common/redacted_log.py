"""Redaction of all logs, of libraries too, and tracebacks: no tokens and no terminal control sequences."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType

from common.printable import printable_lines
from common.redact import without_secrets


class RedactingFormatter(logging.Formatter):
    """Formatter that redacts the whole text of a record of any logger, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        return _shown(super().format(record))


class RedactingRecord(logging.LogRecord):
    """Record with a redacted message for every handler: a library may have its own handler and formatter."""

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
