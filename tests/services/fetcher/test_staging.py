"""Staging of one file, of many in threads, and of which ones."""

from __future__ import annotations

import errno
import os
import random
import select
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from muon_files import make_events, write_events

from common.config import StreamConfig
from common.errors import BadInputError, OwnFaults, TransientError
from common.files.inputs import NOT_UTF8
from common.files.remotes import WrongSizeError
from common.plan import Blocks, Footer, RowGroup, SlotCapacity, SourceFile, StagedFile
from services.fetcher import staging as stage_pool
from services.fetcher.cache import Cache
from services.fetcher.staging import NotStaged, Stage, StageAhead, StagePool
from workloads.muons.columns import MUONS

STREAM = StreamConfig()
REMOTE = SourceFile("https://user:secret@host/f.parquet?token=secret", 7)
FOOTER = Footer((RowGroup(5, 9),))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    cache = Cache(tmp_path / "cache", tmp_path / "run")
    yield Stage(cache, MUONS, STREAM, SlotCapacity(MUONS, STREAM))
    cache.close()


def failing(stage: Stage, error: Exception) -> Stage:
    def fetch(source: SourceFile, path: Path) -> None:
        raise error

    return replace(stage, fetch=fetch)


def local(path: Path) -> SourceFile:
    return SourceFile(str(path), path.stat().st_size)


def test_a_local_file_is_used_in_place_and_bad_if_it_has_changed(stage: Stage, tmp_path: Path) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1, 2, 3]))
    staged = stage(4, local(path), None)
    assert isinstance(staged, StagedFile)
    assert (staged.file, staged.path, staged.remote) == (4, str(path), "")
    assert staged.footer is not None
    assert staged.footer.rows == 3
    changed = stage(0, SourceFile(str(path), 7), None)
    assert isinstance(changed, StagedFile)
    assert changed.footer is None
    assert changed.reason.startswith(f"{path}: ")
    assert "the frozen inventory says 7" in changed.reason
    assert isinstance(stage(0, SourceFile(f"{tmp_path}/not/mounted.parquet", 9), None), NotStaged), "it may be mounted"


@pytest.mark.parametrize("error", [BadInputError("it does not exist any more"), WrongSizeError("9 bytes arrived")])
def test_a_file_that_can_not_be_had_is_bad(stage: Stage, error: Exception) -> None:
    stage = failing(stage, error)
    staged = stage(0, REMOTE, None)
    assert isinstance(staged, StagedFile)
    assert staged.footer is None
    assert str(error) in staged.reason
    assert "secret" not in staged.reason
    planned = stage(0, REMOTE, FOOTER)
    assert isinstance(planned, StagedFile)
    assert (planned.footer, planned.path) == (FOOTER, ""), "it was planned, and keeps its units"
    assert "host/f.parquet" in planned.remote
    assert "secret" not in planned.remote


@pytest.mark.parametrize(
    "error",
    [
        TransientError("told by the server"),
        *(OSError(number, "told by the kernel") for number in (errno.EIO, errno.ENOENT, errno.EACCES, errno.EMFILE)),
    ],
)
@pytest.mark.parametrize("footer", [None, FOOTER])
def test_what_may_pass_says_nothing_of_the_file(stage: Stage, error: Exception, footer: Footer | None) -> None:
    staged = failing(stage, error)(3, REMOTE, footer)
    assert isinstance(staged, NotStaged)
    assert staged.file == 3
    assert "secret" not in staged.reason


def test_a_name_that_is_not_utf8_and_what_is_no_file_are_bad_and_told(stage: Stage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "link.parquet").symlink_to("nowhere")
    told = {
        SourceFile(f"{tmp_path}/x\\udcff.parquet", 9, NOT_UTF8): "is not UTF-8: rename it",
        SourceFile(f"{tmp_path}/pipe.parquet", 0): "a named pipe; expected a file",
        SourceFile(f"{tmp_path}/folder.parquet", 0): "a directory; expected a file",
        SourceFile(f"{tmp_path}/link.parquet", 0): "No such file or directory",
    }
    for source, reason in told.items():
        staged = stage(0, source, None)
        assert isinstance(staged, StagedFile)
        assert staged.footer is None
        assert staged.reason.startswith(f"{source.url}: ")
        assert reason in staged.reason
    impossible = stage(0, SourceFile("/data/\0.parquet", 9), None)
    assert isinstance(impossible, StagedFile)
    assert "null byte" in impossible.reason


def test_a_file_that_stays_refused_while_others_are_read_is_bad_and_no_sooner(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1]))
    write_events(tmp_path / "g.parquet", make_events([1]))
    clock = iter((0.0, 1.0, 2.0, 4.0))
    stage = replace(stage, own_faults=OwnFaults(lambda: next(clock)))
    real = os.open

    def refusing(name: object, *arguments: int) -> int:
        if str(name) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    found = [stage(0, local(path), None) for _ in range(4)]
    assert [type(one) for one in found] == [NotStaged, NotStaged, NotStaged, StagedFile]
    assert "Permission denied" in found[-1].reason


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
def fake_stage() -> FakeStage:
    return FakeStage()


@pytest.fixture
def pool(fake_stage: FakeStage) -> Iterator[StagePool]:
    pool = StagePool(fake_stage, 2, again_s=0.0)  # type: ignore[arg-type]
    yield pool
    pool.close()


def staged(file: int) -> StagedFile:
    return StagedFile(file, f"f{file}", Footer(()))


def collect(pool: StagePool, number: int) -> list[StagedFile]:
    """The next files, waiting only for what wakes the caller."""
    found: list[StagedFile] = []
    while len(found) < number:
        assert select.select([pool.wake_fd], [], [], 20)[0], "nothing woke the caller"
        found += pool.collect()
    return found


def test_every_file_comes_back_once_staged_outside_the_callers_thread_and_so_do_errors(
    fake_stage: FakeStage, pool: StagePool
) -> None:
    fake_stage.answers = {file: [staged(file)] for file in range(20)}
    for file in range(20):
        pool.submit(file, SOURCE, None)
    assert sorted(one.file for one in collect(pool, 20)) == list(range(20))
    assert pool.collect() == []
    fake_stage.answers = {0: [OSError(28, "No space left on device")]}
    pool.submit(0, SOURCE, None)
    with pytest.raises(OSError, match="No space left"):
        collect(pool, 1)
    assert threading.current_thread().name not in fake_stage.threads


def test_pauses_grow_to_the_longest_and_what_waits_is_told_until_it_is_staged(
    fake_stage: FakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(stage_pool.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(stage_pool.random, "uniform", lambda low, high: high)
    pool = StagePool(fake_stage, 1)  # type: ignore[arg-type]
    fake_stage.answers = {3: [NotStaged(3, "no descriptor is left")] * 7 + [staged(3)]}
    pool.submit(3, SOURCE, FOOTER)
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
    assert fake_stage.footers == [FOOTER] * 8
    pool.close()


def make(num_files: int, *, budget: int, ahead: int = 1, block_files: int = 2, epochs: int = 1) -> StageAhead:
    """Every file takes 10 bytes."""
    blocks = Blocks(num_files, StreamConfig(block_files=block_files, shuffle=False), 0, epochs)
    return StageAhead(blocks, [10] * num_files, budget_bytes=budget, blocks_ahead=ahead)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_schedule_never_exceeds_the_budget_and_gives_each_block_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    block_files = rng.randint(1, 3)
    num_files = rng.randint(1, 12)
    epochs = rng.randint(1, 3)
    blocks = Blocks(num_files, StreamConfig(block_files=block_files, shuffle=rng.random() < 0.5), seed, epochs)
    sizes = [rng.choice([0, 5, 10]) for _ in range(num_files)]
    budget = rng.randint(20 * block_files, 60 * block_files)
    ahead = StageAhead(blocks, sizes, budget_bytes=budget, blocks_ahead=rng.randint(1, 3))
    on_their_way: list[int] = []
    on_disk: set[int] = set()
    taken: list[int] = []
    trained = 0
    for _ in range(3000):
        if ahead.ended:
            break
        match rng.randint(0, 40):
            case 0:  # the trainer went back to its checkpoint
                del taken[rng.randint(trained, len(taken)) :]
                known = [file for file in sorted(on_disk) if rng.random() < 0.9]
                on_disk -= {*ahead.restart(len(taken), known), *(on_disk - {*known})}
                trained = min(trained, len(taken))
            case n if n <= 10:
                begun = ahead.begin(trained)
                assert on_disk >= set(begun.give_up), "only what is there is given up"
                on_disk -= set(begun.give_up)
                on_their_way += begun.stage
                assert len(set(on_their_way)) == len(on_their_way), "no file is fetched twice at a time"
            case n if n <= 20 and on_their_way:
                file = on_their_way.pop(rng.randrange(len(on_their_way)))
                if ahead.add(staged(file)):
                    on_disk.add(file)
                else:
                    on_disk.discard(file)
            case n if n <= 30:
                block = ahead.take_block()
                if block is not None:
                    number, files = block
                    taken.append(number)
                    assert [file.file for file in files] == blocks.files(number)
                    assert {file.file for file in files} <= on_disk
            case n if n <= 40 and taken:
                trained = rng.randint(trained, len(taken))
                freed = set(ahead.evict(trained))
                assert on_disk >= freed
                on_disk -= freed
        assert sum(sizes[file] for file in on_disk | set(on_their_way)) <= ahead.bytes_held <= budget
    assert taken == list(range(blocks.end or 0))
    ahead.evict(len(taken))
    assert ahead.bytes_held == 0, "nothing is kept once no epoch follows"


def test_the_budget_stops_the_staging_until_something_is_evicted() -> None:
    ahead = make(6, budget=40, ahead=5)
    assert ahead.begin(0).stage == [0, 1, 2, 3]
    assert ahead.out_of_budget
    assert not ahead.waits_for_eviction, "files are on their way"
    for file in range(4):
        ahead.add(staged(file))
    ahead.take_block()
    ahead.take_block()
    ahead.begin(1)
    assert ahead.waits_for_eviction
    assert ahead.evict(1) == [0, 1]
    assert ahead.begin(1).stage == [4, 5]
    assert not ahead.waits_for_eviction
    with pytest.raises(BadInputError, match=r"fetcher\.disk_budget_gib.*stream\.block_files"):
        make(4, budget=19).begin(0)  # a block alone exceeds it


def run_through(ahead: StageAhead, fetches: list[int]) -> None:
    """Train block after block, counting the files that are not on disk when they are staged."""
    on_disk: set[int] = set()
    block = 0
    while not ahead.ended:
        begun = ahead.begin(block)
        on_disk -= set(begun.give_up)
        fetches += [file for file in begun.stage if file not in on_disk]
        on_disk |= set(begun.stage)
        for file in begun.stage:
            ahead.add(staged(file))
        while ahead.take_block() is not None:
            block += 1
        on_disk -= set(ahead.evict(block))


def test_files_that_all_fit_are_fetched_once_for_all_epochs() -> None:
    for budget, expected in ((1000, 100), (10, 500)):
        fetches: list[int] = []
        run_through(make(100, budget=budget, block_files=1, epochs=5), fetches)
        assert len(fetches) == expected


def test_a_file_that_is_needed_last_is_given_up_first() -> None:
    ahead = make(4, budget=30, block_files=1, epochs=2)
    for file in ahead.begin(0).stage:
        ahead.add(staged(file))
    ahead.take_block()
    ahead.take_block()
    assert ahead.evict(2) == []
    assert ahead.bytes_kept == 20
    begun = ahead.begin(1)
    assert (begun.give_up, begun.stage) == ([], [2])
    ahead.add(staged(2))
    begun = ahead.begin(2)
    assert (begun.give_up, begun.stage) == ([1], [3]), "file 0 comes again before file 1"


@pytest.mark.parametrize("bad", [StagedFile(0, "f0", None, reason="bad"), StagedFile(0, "", Footer(()))])
def test_a_file_that_is_bad_or_gone_is_not_kept(bad: StagedFile) -> None:
    ahead = make(4, budget=1000, ahead=1, block_files=1, epochs=2)
    ahead.begin(0)
    ahead.add(bad)
    ahead.take_block()
    assert ahead.evict(1) == [0]


def test_a_restart_keeps_of_the_cache_what_is_needed_soonest_and_fits() -> None:
    ahead = make(6, budget=30, block_files=1)
    assert ahead.restart(2, in_cache=[0, 1, 5, 4, 3, 2]) == [5, 0, 1], "0 and 1 are not needed any more"
    assert ahead.bytes_held == ahead.bytes_kept == 30
    begun = ahead.begin(2)
    assert (begun.give_up, begun.stage) == ([], [2, 3])


def test_staging_waits_for_ranges_that_are_not_listed_yet() -> None:
    blocks = Blocks.of_ranges(2, StreamConfig(block_files=1, shuffle=False), 0, 1)
    ahead = StageAhead(blocks, [10] * 4, budget_bytes=1000, blocks_ahead=5)
    assert ahead.begin(0).stage == []
    blocks.append(2)
    assert ahead.begin(0).stage == [0, 1]
    assert not ahead.is_full
    blocks.append(2)
    assert ahead.begin(0).stage == [2, 3]


def test_staging_is_full_when_the_blocks_ahead_or_the_budget_are_used_up_and_nothing_is_on_its_way() -> None:
    for ahead in (make(8, budget=1000, ahead=1), make(8, budget=40, ahead=5)):
        files = ahead.begin(0).stage
        assert not ahead.is_full, "files are on their way"
        for file in files:
            ahead.add(staged(file))
        assert ahead.is_full


def test_the_part_that_is_ahead_counts_blocks_given_out_beyond_the_current_one() -> None:
    ahead = make(20, budget=1000, ahead=4)
    for file in ahead.begin(0).stage[:6]:  # three blocks of five
        ahead.add(staged(file))
    assert ahead.part_ahead(0) == 0.0
    for _ in range(3):
        ahead.take_block()
    assert ahead.part_ahead(0) == 2 / 4
    assert ahead.part_ahead(2) == 0.0
    assert ahead.part_ahead(3) == 0.0
