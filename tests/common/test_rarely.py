from __future__ import annotations

import logging

import pytest

from common import rarely
from common.rarely import Rarely


def test_a_line_that_comes_without_end_is_told_a_few_times_a_minute_with_how_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(rarely.time, "monotonic", lambda: now_s)
    line = Rarely(logging.getLogger("some service"))
    for i in range(1000):
        line.log("refused %d", i)
    assert [record.getMessage() for record in caplog.records] == [f"refused {i}" for i in range(5)]
    now_s += 60.0
    line.log("refused %s", "another")
    line.log("refused %s", "one more")
    assert [record.getMessage() for record in caplog.records[5:]] == [
        "refused another (and 995 more like it)",
        "refused one more",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
