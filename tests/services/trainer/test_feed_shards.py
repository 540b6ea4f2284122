"""The feed of one trainer that reads several shards, against a real transport and dispatcher of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch
from feeding import ALL_ROWS, COLUMNS, CONFIG, STREAM, BatchFeed, Fetcher, rows

from common import messages as m
from common.config import StreamConfig
from common.errors import BadInputError
from common.paths import make_run_dir, shard_dir
from services.trainer.position import start_of
from workloads.muons.columns import MUONS

SHARDS = STREAM.model_copy(update={"shards": 2})
PATIENCE_S = 20.0
OLD, NEW = m.Source(1, "of the former files"), m.Source(1, "of other files")

Fetch = Callable[..., list[Fetcher]]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for shard in range(SHARDS.shards):
        make_run_dir(shard_dir(tmp_path, shard))
    return tmp_path


@pytest.fixture
def fetch(run_dir: Path) -> Iterator[Fetch]:
    """Fetchers of both shards, with this inventory; those of `mute` deliver nothing."""
    with ExitStack() as started:

        def start(source: m.Source, mute: tuple[int, ...] = ()) -> list[Fetcher]:
            started.close()
            return [
                started.enter_context(
                    closing(Fetcher(shard_dir(run_dir, shard), stream=SHARDS, source=source, decodes=shard not in mute))
                )
                for shard in range(SHARDS.shards)
            ]

        yield start


def feed_of(run_dir: Path, *, accept_new_plan: bool = False) -> BatchFeed:
    return BatchFeed(
        run_dir,
        MUONS,
        SHARDS,
        CONFIG,
        device=torch.device("cpu"),
        columns=COLUMNS,
        audit=True,
        stopped=lambda: False,
        accept_new_plan=accept_new_plan,
    )


@pytest.mark.parametrize("begun", [(0, 1), (0,), (1,)])
def test_a_new_plan_that_was_asked_for_begins_in_all_shards_and_each_refuses_the_checkpoint(
    run_dir: Path, fetch: Fetch, begun: tuple[int, ...]
) -> None:
    """Also a shard that had no files before: trainers of other shards begin the plan, too."""
    fetch(OLD)
    with closing(feed_of(run_dir)) as feed:
        first = next(feed.batches(start_of(StreamConfig(shards=2))))
    begin = start_of(StreamConfig(shards=2)).with_shards({shard: first.position.shards[shard] for shard in begun})
    fetchers = fetch(NEW)
    with closing(feed_of(run_dir, accept_new_plan=True)) as feed:
        found = [row for fed in feed.batches(begin) for row in rows(fed)]
        assert sorted(found) == sorted(2 * ALL_ROWS)
        assert [shard.counters.events_trained for shard in feed.position.shards] == [len(ALL_ROWS)] * 2
        assert feed.position.counters.events_trained == begin.counters.events_trained + 2 * len(ALL_ROWS)
        assert feed.position.counters.adds_up()
    assert [[attach.source for attach in fetcher.of(m.Attach)] for fetcher in fetchers] == [[OLD, m.Source()]] * 2


def test_other_inputs_are_refused_unless_a_new_plan_was_asked_for(run_dir: Path, fetch: Fetch) -> None:
    fetch(OLD)
    with closing(feed_of(run_dir)) as feed:
        first = next(feed.batches(start_of(StreamConfig(shards=2))))
    fetch(NEW)
    with closing(feed_of(run_dir)) as feed, pytest.raises(BadInputError, match="of another inventory"):
        list(feed.batches(first.position))


@pytest.mark.parametrize("awaited", [0, 1])
def test_a_commit_tells_the_shard_that_is_waited_for_and_no_other(run_dir: Path, fetch: Fetch, awaited: int) -> None:
    """Else a shard that only waits for its turn would take its disk budget for too small."""
    fetchers = fetch(OLD, mute=(awaited,))
    with closing(feed_of(run_dir)) as feed, closing(feed.stream(start_of(StreamConfig(shards=2)))) as stream:
        deadline_s = time.monotonic() + PATIENCE_S
        while not any(commit.waits for commit in fetchers[awaited].of(m.Committed)[-3:-2]):
            assert next(stream) is None
            feed.committed(feed.position)
            assert time.monotonic() < deadline_s
        assert not fetchers[1 - awaited].of(m.Committed)[-1].waits
