"""Stages of benchmarks/gpu in processes: whatever happens in one, its rows are kept and the others go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from benchmarks.gpu.channel import Channel, Finding
from benchmarks.gpu.processes import measure
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.stages import Stage

pytestmark = pytest.mark.process


class StageOfTest:
    name = "tested"
    module = "gpu_stages_of_tests"


def measured(what: str, limit_s: float = 100.0) -> tuple[Finding, list[str]]:
    said: list[str] = []
    return measure(cast(Stage, StageOfTest()), Setting(what), limit_s, said.append), said


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raises", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("asks", "last line"),
        ("crashes", "ended by SIGSEGV"),
        ("leaves", "exit code 7"),
    ],
)
def test_a_stage_that_fails_is_named_with_its_error_and_its_rows_are_kept(what: str, reason: str) -> None:
    found, _ = measured(what)
    assert (found.state, found.reason, found.rows) == ("failed", reason, [{"what": what}])
    assert found.is_bad
    assert ("gpu_stages_of_tests.py" in found.traceback) == (what in {"raises", "asks"})


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_stage_that_hangs_is_ended_at_its_limit_with_its_children(tmp_path: Path) -> None:
    assert measured("nothing")[0].state == "done"  # torch is loaded from here on
    found, _ = measured(f"hangs:{tmp_path}", limit_s=12.0)
    assert (found.state, found.reason) == ("cut off", "after 12 s, its limit")
    assert found.rows == [{"what": "hangs"}, {"what": "waits"}]
    assert not found.is_bad
    child = int((tmp_path / "child").read_text())
    while is_running(child):
        time.sleep(0.01)


def test_warnings_of_the_product_are_part_of_the_page() -> None:
    found, said = measured("warns")
    assert found.left_out == ["a warning: copies will be slow"]
    assert "elsewhere: something else" in said


def test_a_check_that_fails_makes_the_stage_bad_and_does_not_end_it() -> None:
    found, said = measured("checks")
    assert (found.state, found.failures, found.is_bad) == ("done", ["a value differs"], True)
    assert said == ["FAILED: a value differs", "left out: another check: no time was left"]


def test_what_does_not_fit_into_the_time_is_left_out_with_both_numbers() -> None:
    sent: list[object] = []
    channel = Channel(sent.append, time.monotonic() + 5.9)
    assert channel.has(3.0, "this")
    assert not channel.has(30.0, "that")
    assert sent == [("leave_out", "that: it takes about 30 s, and 6 s were left")]
