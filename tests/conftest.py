"""Fast tests first, so that a mistake shows early; everything runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from federation.fixtures import federation, started_federation  # noqa: F401  (for every test)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Commands that are called in this process make files for their owner only from then on: XRootD could read none."""
    before = os.umask(0o077)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Small tensors: several threads wait for each other, on busy cores many times longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
