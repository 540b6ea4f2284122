"""`icestream logs` on made-up logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from run_dirs import made_run, session

from common.errors import BadInputError
from icestream.commands.logs import Tails, logs


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    made_run(tmp_path, session(state="finished"))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/fetcher.log").write_text(
        "2026-11-23 10:00:00 fetcher INFO begins\n2026-11-23 10:00:04 fetcher INFO ends\n"
    )
    (tmp_path / "logs/decoder-0.log").write_text("2026-11-23 10:00:01 decoder INFO zero\n")
    (tmp_path / "logs/decoder-1.log").write_text(
        "2026-11-23 10:00:02 decoder WARNING one\nTraceback of one\n2026-11-23 10:00:03 decoder INFO again\n"
    )
    return tmp_path


def printed(*arguments: object) -> list[str]:
    result = CliRunner().invoke(logs, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [line.split(maxsplit=1)[0] + " " + line.split()[-1] for line in result.output.splitlines()]


def test_all_logs_are_merged_by_time_and_a_line_without_time_stays_behind_its_own(run_dir: Path) -> None:
    assert printed(run_dir) == [
        "fetcher begins",
        "decoder-0 zero",
        "decoder-1 one",
        "decoder-1 one",
        "decoder-1 again",
        "fetcher ends",
    ]


def test_one_process_or_all_of_one_service_can_be_chosen(run_dir: Path) -> None:
    assert printed(run_dir, "decoder-0") == ["decoder-0 zero"]
    assert [line.split()[0] for line in printed(run_dir, "decoder")] == ["decoder-0", *["decoder-1"] * 3]
    with pytest.raises(BadInputError, match="no log of 'trainer'; there are: decoder-0, decoder-1, fetcher"):
        printed(run_dir, "trainer")


def test_the_last_lines_are_the_last_of_all_services(run_dir: Path) -> None:
    assert printed(run_dir, "-n", 2) == ["decoder-1 again", "fetcher ends"]
    assert printed(run_dir, "-n", 0) == []


def test_following_a_run_that_has_ended_ends(run_dir: Path) -> None:
    assert printed(run_dir, "-f")[-1] == "fetcher ends"


def test_new_lines_come_once_when_they_are_complete_and_a_new_file_is_found(run_dir: Path) -> None:
    tails = Tails(run_dir / "logs", None)
    assert len(list(tails.new_lines())) == 6
    with (run_dir / "logs/fetcher.log").open("a") as log:
        log.write("2026-11-23 10:00:05 fetcher INFO ha")
        log.flush()
        assert list(tails.new_lines()) == []
        log.write("lf\n")
    (run_dir / "logs/trainer.log").write_text("2026-11-23 10:00:06 trainer INFO new\n")
    assert [text.split()[-1] for _, _, text in tails.new_lines()] == ["half", "new"]
    (run_dir / "logs/trainer.log").write_text("2026-11-23 10:00:07 t\n")  # begun again, and shorter
    assert [text.split()[-1] for _, _, text in tails.new_lines()] == ["t"]


def test_text_in_a_log_can_not_control_the_terminal_and_tokens_are_not_shown(run_dir: Path) -> None:
    (run_dir / "logs/trainer.log").write_text("2026-11-23 10:00:09 \x1b[2J Authorization: Bearer abc.def.ghi\n")
    result = CliRunner().invoke(logs, [str(run_dir), "trainer"])
    assert "\x1b" not in result.output
    assert "abc.def" not in result.output
