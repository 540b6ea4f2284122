"""Fast tests first, so that a mistake shows early; everything runs."""

from __future__ import annotations

import pytest
from federation.fixtures import federation, started_federation  # noqa: F401  (for every test)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
