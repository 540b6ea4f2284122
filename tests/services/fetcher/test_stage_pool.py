"""Worker threads that stage files, and try again what may pass."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from common.plan import Footer, SourceFile, StagedFile
from services.fetcher.staging import stage_pool
from services.fetcher.staging.stage import NotStaged
from services.fetcher.staging.stage_pool import StagePool

SOURCE = SourceFile("https://host/f.parquet", 7)


class FakeStage:
    """Answers from a script: the results of one file in turn."""

    def __init__(self) -> None:
        self.answers: dict[int, list[StagedFile | NotStaged | Exception]] = {}
        self.footers: list[Footer | None] = []
        self.threads: set[str] = set()

    def __call__(self, file: int, source: SourceFile, footer: Footer | None) -> StagedFile | NotStaged:
        assert source == SOURCE
        self.footers.append(footer)
        self.threads.add(threading.current_thread().name)
        answer = self.answers[file].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def stage() -> FakeStage:
    return FakeStage()


@pytest.fixture
def pool(stage: FakeStage) -> Iterator[StagePool]:
    pool = StagePool(stage, 2, again_s=0.0)  # type: ignore[arg-type]
    yield pool
    pool.close()


def staged(file: int) -> StagedFile:
    return StagedFile(file, "path", Footer(()))


def collect(pool: StagePool, number: int) -> list[StagedFile]:
    """The next files, waiting only for what wakes the caller."""
    found: list[StagedFile] = []
    while len(found) < number:
        assert select.select([pool.wake_fd], [], [], 20)[0], "nothing woke the caller"
        found += pool.collect()
    return found


def test_every_file_comes_back_once_staged_outside_the_callers_thread(stage: FakeStage, pool: StagePool) -> None:
    stage.answers = {file: [staged(file)] for file in range(20)}
    for file in range(20):
        pool.submit(file, SOURCE, None)
    assert sorted(one.file for one in collect(pool, 20)) == list(range(20))
    assert pool.collect() == []
    assert threading.current_thread().name not in stage.threads


def test_what_may_pass_is_tried_again_with_its_footer_until_it_works(stage: FakeStage, pool: StagePool) -> None:
    stage.answers = {3: [NotStaged(3, "the server is away")] * 5 + [staged(3)]}
    pool.submit(3, SOURCE, Footer(()))
    found: list[StagedFile] = []
    while not found:
        select.select([pool.wake_fd], [], [], 0.05)  # a retry that is due wakes nobody: the caller looks now and then
        found = pool.collect()
    assert found == [staged(3)]
    assert stage.footers == [Footer(())] * 6


def test_an_unexpected_error_of_a_worker_reaches_the_caller(stage: FakeStage, pool: StagePool) -> None:
    stage.answers = {0: [OSError(28, "No space left on device")]}
    pool.submit(0, SOURCE, None)
    with pytest.raises(OSError, match="No space left"):
        collect(pool, 1)


def test_pauses_grow_to_the_longest_and_what_waits_is_told_until_it_is_staged(
    stage: FakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(stage_pool.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(stage_pool.random, "uniform", lambda low, high: high)
    pool = StagePool(stage, 1)  # type: ignore[arg-type]
    stage.answers = {3: [NotStaged(3, "no descriptor is left")] * 7 + [staged(3)]}
    pool.submit(3, SOURCE, None)
    pauses, found = [], []
    for _ in range(7):
        assert select.select([pool.wake_fd], [], [], 20)[0]
        assert pool.collect() == []
        assert pool.problem == "no descriptor is left"
        ((due_s, _),) = pool._again
        pauses.append(due_s - now_s)
        now_s = due_s
        found = pool.collect()  # the last of them may find at once what it starts
    assert pauses == [1, 2, 4, 8, 10, 10, 10]
    assert (found or collect(pool, 1)) == [staged(3)]
    assert pool.problem == ""
    pool.close()


def test_what_waits_is_told_also_while_it_is_tried_again_until_nothing_waits(
    stage: FakeStage, pool: StagePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = threading.Event()

    def answer(file: int, source: SourceFile, footer: Footer | None) -> StagedFile | NotStaged:
        if len(stage.footers) == 2:
            assert may_answer.wait(20)
        return stage(file, source, footer)

    monkeypatch.setattr(pool, "_stage", answer)
    monkeypatch.setattr(stage_pool.random, "uniform", lambda low, high: 0.0)
    stage.answers = {3: [NotStaged(3, "the server is away"), staged(3)], 4: [staged(4)]}
    pool.submit(4, SOURCE, None)
    assert collect(pool, 1) == [staged(4)]
    pool.submit(3, SOURCE, None)
    assert select.select([pool.wake_fd], [], [], 20)[0]
    assert pool.collect() == []
    assert pool.problem == "the server is away"
    assert pool.collect() == []
    assert not pool._again, "it is under way"
    assert pool.problem == "the server is away"
    may_answer.set()
    assert collect(pool, 1) == [staged(3)]
    assert pool.problem == ""
