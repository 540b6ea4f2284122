"""Trainers that start and end together: what is decided about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.attempt import RunAttempt
from common.rank_variables import RANKS_FILE_VARIABLE
from services.supervisor.trainer_group import LocalGroup, NodeGroup, cause_of, new_meeting, trainer_names
from services.trainer.ranks.rank_place import place_from


def test_the_first_trainer_has_the_name_of_a_single_one() -> None:
    assert trainer_names(1) == ["trainer"]
    assert trainer_names(3) == ["trainer", "trainer-1", "trainer-2"]


def test_each_gets_its_rank(tmp_path: Path) -> None:
    group = LocalGroup(tmp_path, 2)
    assert group.environment("trainer")["RANK"] == "0"
    last = group.environment("trainer-1")
    assert (last["RANK"], last["LOCAL_RANK"], last["WORLD_SIZE"]) == ("1", "1", "2")
    assert "MASTER_PORT" not in last, "any user of the machine could speak to it"


def test_a_single_trainer_has_no_rank(tmp_path: Path) -> None:
    assert LocalGroup(tmp_path, 1).environment("trainer") == {}


def test_a_restarted_group_meets_elsewhere(tmp_path: Path) -> None:
    group = LocalGroup(tmp_path, 2)
    meetings = [group.environment(name)[RANKS_FILE_VARIABLE] for name in ("trainer", "trainer-1", "trainer")]
    assert meetings[0] == meetings[1] != meetings[2]


def test_the_trainers_of_a_node_are_ranks_of_all_nodes(tmp_path: Path) -> None:
    ranks = []
    for node in range(3):
        group = NodeGroup(2, node, 3, "node-0", 29500, RunAttempt(tmp_path, 7))
        for local, name in enumerate(trainer_names(2)):
            place = place_from(group.environment(name))
            assert place is not None
            assert (place.size, place.local_rank, place.local_size) == (6, local, 2)
            assert (place.address, place.port, place.attempt) == ("node-0", 29500, "7")
            ranks.append(place.rank)
    assert ranks == list(range(6))


def test_a_single_trainer_of_a_single_node_is_alone(tmp_path: Path) -> None:
    group = NodeGroup(1, 0, 1, "node-0", 29500, RunAttempt(tmp_path, 1))
    assert place_from(group.environment("trainer")) is None


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
