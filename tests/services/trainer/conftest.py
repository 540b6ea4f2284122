"""Fixtures of the tests of feed and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda, WatchedCopier
from feeding import COLUMNS, CONFIG, STREAM, BatchFeed, Connect, Fetch, Fetcher

from common.config import StreamConfig
from services.trainer import units
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

    def make(stopped: Callable[[], bool] = lambda: False, stream: StreamConfig = STREAM, **options: Any) -> BatchFeed:
        options = {"columns": COLUMNS, "audit": True} | options
        feeds.append(BatchFeed(tmp_path, MUONS, stream, CONFIG, device=device, stopped=stopped, **options))
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()
