"""Trainers that start and end together: what is decided about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.supervisor.trainer_group import cause_of, new_meeting, rank_environment, trainer_names


def test_the_first_trainer_has_the_name_of_a_single_one() -> None:
    assert trainer_names(1) == ["trainer"]
    assert trainer_names(3) == ["trainer", "trainer-1", "trainer-2"]


def test_each_gets_its_rank() -> None:
    assert rank_environment("trainer", 2, Path("f"))["RANK"] == "0"
    last = rank_environment("trainer-1", 2, Path("f"))
    assert (last["RANK"], last["LOCAL_RANK"], last["WORLD_SIZE"]) == ("1", "1", "2")
    assert "MASTER_PORT" not in last, "any user of the machine could speak to it"


@pytest.mark.parametrize(
    ("exit_codes", "cause"),
    [
        ((0, 0, 0), "trainer"),
        ((1, 1, 2), "trainer-2"),
        ((1, -9, 1), "trainer-1"),
        ((-9, 2, 1), "trainer-1"),
        ((0, 1, 0), "trainer-1"),
        ((-15, -11, 1), "trainer-1"),
        ((0, -15, 1), "trainer-1"),
    ],
)
def test_whose_end_was_the_cause(exit_codes: tuple[int, ...], cause: str) -> None:
    assert cause_of(dict(zip(trainer_names(3), exit_codes, strict=True))) == cause


def test_each_group_of_trainers_meets_in_a_file_of_its_own_in_their_owners_folder(tmp_path: Path) -> None:
    former = new_meeting(tmp_path)
    former.touch()
    (former.parent / "run").touch()
    assert new_meeting(tmp_path) != former
    assert [path.name for path in former.parent.iterdir()] == ["run"]
    assert former.parent.stat().st_mode & 0o777 == 0o700
