"""A damaged checkpoint of the other kind is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.checkpoints.checkpoint_folder import CHECKPOINT_FOLDER
from services.trainer.counting.checkpoint import read_position
from workloads.base.checkpoint import UnreadableError


def test_a_damaged_position_is_named(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FOLDER / "step-000000005.json"
    path.parent.mkdir()
    path.write_text('{"gar')
    with pytest.raises(UnreadableError, match=path.name):
        read_position(path)
