"""Log of the steps that were not healthy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.attempt import OutdatedAttemptError, begin_attempt
from services.trainer.health.health import Health, Verdict
from services.trainer.health.health_log import HealthLog
from services.trainer.health.recent_steps import Place, TakenStep

STEP = TakenStep(7, (Place(0, 1, 2, 3),), {"c_loss": float("nan")})
VERDICT = Verdict(Health.CRITICAL, ("c_loss is nan",))


def test_a_trainer_of_an_older_attempt_adds_no_line(tmp_path: Path) -> None:
    older, newer = (HealthLog(tmp_path / "health.jsonl", begin_attempt(tmp_path).publishing) for _ in range(2))
    with pytest.raises(OutdatedAttemptError):
        older.write(STEP, VERDICT, "of the older")
    newer.write(STEP, VERDICT, "went back")
    (line,) = (tmp_path / "health.jsonl").read_text().splitlines()
    assert json.loads(line)["action"] == "went back"
