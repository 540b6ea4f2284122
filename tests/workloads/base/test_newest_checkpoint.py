"""Names of checkpoints in a run's folder."""

from __future__ import annotations

from pathlib import Path

from workloads.base.checkpoint import newest_checkpoint, newest_step


def test_the_newest_checkpoint_is_that_of_the_highest_step_with_weights_or_without(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_step(tmp_path) == 0
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("best.pt", "step-000000020.2.part", "step-000000030.part", "step-7.pt"):
        (folder / name).touch()
    assert newest_step(tmp_path) == 0
    (folder / "step-000000009.pt").touch()
    (folder / "step-000000010.json").touch()
    assert newest_checkpoint(tmp_path) == folder / "step-000000010.json"
    assert newest_step(tmp_path) == 10
