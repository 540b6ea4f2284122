"""Fixtures of the tests of feed and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda, WatchedCopier
from feeding import COLUMNS, CONFIG, STREAM, BatchFeed, Connect, Fetch, Fetcher

from common.config import StreamConfig
from services.trainer import units
from services.trainer.agreement import Agreement
from workloads.muons.columns import MUONS


@pytest.fixture
def fetch(tmp_path: Path) -> Iterator[Fetch]:
    started: list[Fetcher] = []

    def start(**options: object) -> Fetcher:
        started.append(Fetcher(tmp_path, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for fetcher in started:
        fetcher.close()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture(params=["on the CPU", "on a fake GPU"])
def connect(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Connect]:
    feeds: list[BatchFeed] = []
    device = torch.device("cpu")
    if request.param != "on the CPU":
        request.getfixturevalue("cuda")
        device = torch.device("cuda")
        request.getfixturevalue("monkeypatch").setattr(units, "make_copier", WatchedCopier)

    def make(
        stopped: Callable[[], bool] = lambda: False,
        *,
        stream: StreamConfig = STREAM,
        rank: int = 0,
        ranks: int = 1,
        agreement: Agreement | None = None,
    ) -> BatchFeed:
        feeds.append(
            BatchFeed(
                tmp_path,
                MUONS,
                stream,
                CONFIG,
                device=device,
                columns=COLUMNS,
                audit=True,
                stopped=stopped,
                rank=rank,
                ranks=ranks,
                agreement=agreement,
            )
        )
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()
