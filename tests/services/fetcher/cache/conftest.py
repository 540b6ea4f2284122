"""Caches, stopped and closed after each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from caches import Make, Remote

from services.fetcher.staging.cache import Cache
from services.fetcher.staging.cache_layout import CacheLayout


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Caches of runs, which have run directories."""
    made: list[Cache] = []

    def one(run: str) -> Cache:
        (tmp_path / run).mkdir(exist_ok=True)
        made.append(Cache(tmp_path / "cache", tmp_path / run))
        return made[-1]

    yield one
    for cache in made:
        cache.close()


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def layout(tmp_path: Path) -> CacheLayout:
    return CacheLayout(tmp_path / "cache")
