"""The stage that tests of the supervisor act on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins import Stage, assert_gone


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    assert_gone(stage.pids())
