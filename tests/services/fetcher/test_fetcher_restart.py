"""A fetcher that is started again while trainer and decoders still have the former one's arena in memory."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from common.attempt import ATTEMPT_VARIABLE, OutdatedAttemptError, begin_attempt
from common.errors import BadInputError
from common.process import StopFlag
from common.status import OUTLIER_FOLDER, FetcherStatus
from common.status_files import read_status, write_status
from services.config.root import Config
from services.fetcher import service as module
from services.fetcher.service import FetcherService

CONFIG = Config.model_validate({"input": ["x.parquet"], "stream": {"slots": 2, "slot_mib": 1}})


def leave_status(run_dir: Path) -> None:
    write_status(run_dir, "fetcher", FetcherStatus(pid=1, state="streaming"))


def test_a_fetcher_that_is_started_again_waits_for_the_memory_of_the_former_ones_arena(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_status(tmp_path)
    problems = []

    def available() -> int:
        status = read_status(tmp_path, "fetcher", FetcherStatus)
        assert status is not None
        problems.append(status.problem)
        return 0 if len(problems) < 3 else 1 << 40

    monkeypatch.setattr("common.arena.available_memory_bytes", available)
    FetcherService(tmp_path, CONFIG).close()
    assert problems[0] == ""
    assert all("too little memory for the arena; waiting" in problem for problem in problems[1:])


@pytest.mark.parametrize("is_restart", [False, True])
def test_memory_that_does_not_come_back_is_an_error_that_names_both_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restart: bool
) -> None:
    monkeypatch.setattr(module, "_LET_GO_S", 0.0 if is_restart else 10**6)  # the first fetcher waits for nobody
    if is_restart:
        leave_status(tmp_path)
    monkeypatch.setattr("common.arena.available_memory_bytes", lambda: 0)
    with pytest.raises(BadInputError, match=r"stream\.slots = 2 × stream\.slot_mib = 1 .*lower one of them"):
        FetcherService(tmp_path, CONFIG)


def test_a_fetcher_of_an_older_attempt_leaves_the_outliers_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen while its run was started again elsewhere, and its supervisor starts it again as it wakes up."""
    attempt = begin_attempt(tmp_path / "shared")
    part = tmp_path / "shared" / OUTLIER_FOLDER / "unit-0.12345678.part"
    part.parent.mkdir()
    part.touch()
    for name, value in attempt.environment.items():
        monkeypatch.setenv(name, value)
    begin_attempt(tmp_path / "shared")
    with pytest.raises(OutdatedAttemptError):
        FetcherService(tmp_path / "run", CONFIG)
    assert part.exists()
    monkeypatch.setenv(ATTEMPT_VARIABLE, "2")
    FetcherService(tmp_path / "of the newest", CONFIG).close()
    assert not part.exists()


def test_a_fetcher_that_goes_on_says_that_its_inputs_have_more_files_than_its_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "1.parquet").touch()
    config = Config.model_validate({"input": [str(data)], "stream": {"slots": 2, "slot_mib": 1}})

    class Until:
        """Stop flag that is set after some turns of the fetcher, or once it has warned."""

        turns = 0

        def __bool__(self) -> bool:
            self.turns += 1
            return self.turns > 20 or bool(caplog.messages)

    def run() -> None:
        service = FetcherService(tmp_path / "run", config)
        try:
            service.run(cast("StopFlag", Until()))
        finally:
            service.close()

    run()
    assert not caplog.messages
    (data / "2.parquet").touch()
    run()
    (message,) = caplog.messages
    assert message.startswith("new files in the inputs: 1, ")
