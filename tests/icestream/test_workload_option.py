"""`--workload` of a workload's verb."""

from __future__ import annotations

import pytest

from icestream.cli import without_workload


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "--workload", "muons", "b"], ("muons", ["a", "b"])),
        (["--workload=muons"], ("muons", [])),
        (["--", "--workload=muons"], (None, ["--", "--workload=muons"])),
        (["--workload", "muons", "--", "--workload"], ("muons", ["--", "--workload"])),
    ],
)
def test_it_is_an_option_before_two_dashes_only(arguments: list[str], expected: tuple[str | None, list[str]]) -> None:
    assert without_workload(arguments) == expected
