"""What a service process tells of its background threads."""

from __future__ import annotations

import threading

import pytest

from common.process import tell_thread_errors


def test_an_error_of_the_disk_in_a_librarys_thread_is_one_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: others.append(arguments.exc_type))
    tell_thread_errors()

    for error in (OSError(28, "No space left on device"), ValueError("a bug")):

        def fail(error: Exception = error) -> None:
            raise error

        thread = threading.Thread(target=fail, name="writer")
        thread.start()
        thread.join()

    assert [record.message for record in caplog.records] == ["writer: [Errno 28] No space left on device"]
    assert others == [ValueError]
    assert "Traceback" not in capsys.readouterr().err
