"""Order and company of the tests: fast ones first, those of whole runs never two at once; everything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from federation.fixtures import federation, started_federation  # noqa: F401  (for every test)

PIPELINE = Path(__file__).parent / "pipeline"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if PIPELINE in item.path.parents:
            # Each starts four processes and more: with `-n` they all go to one worker, one after the other.
            item.add_marker(pytest.mark.xdist_group("pipeline"))
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Small tensors: several threads wait for each other, on busy cores many times longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
