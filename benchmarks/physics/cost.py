"""Expected cost of the runs, so that all of them fit into half an hour. Measured on one idle core.

Seconds of CPU; the actual times are in benchmarks/results/.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.physics.spec import CORSIKA_FILE, Run

STEP_S = {"wgan": 0.11, "flow": 0.0135, "present": 0.048, "count head": 0.003}
"""Seconds of a step of 256 `bench` events, which have 4.6 muons each."""
_MUONS = {"bench": 4.6, "heavy": 9.7, CORSIKA_FILE: 5.5}
"""Muons of an event; for the 11 CORSIKA showers with 1,398 muons a step, as if they were 256 events."""
_EVALUATION_S, _C2ST_S = 9.0, 24.0
"""Seconds of an evaluation of 40,000 events, and the additional ones of the two-sample tests."""
_START_S = 4.0
LIMIT_S = 3600.0
"""Limit on the sum of all runs: half an hour on two cores."""


def expected_s(run: Run) -> float:
    """Expected seconds of one core."""
    step_s = STEP_S[run.model]
    if run.model != "count head":
        step_s *= _MUONS[run.source.preset] / _MUONS["bench"]
    # The two-sample tests use at most 256 muons of an event: a heavy one costs them little more.
    judged = _MUONS[(run.judged_by or run.source).preset] / _MUONS["bench"] * run.events / 40_000
    return _START_S + run.steps * step_s + judged * (_EVALUATION_S + (_C2ST_S if run.c2st else 0.0))


def plan(runs: Sequence[Run], jobs: int) -> str:
    """Table with a line for each run, and the sum."""
    lines = [f"{'run':<26}{'steps':>7}{'events':>8}{'C2ST':>6}{'expected s':>12}"]
    lines += [
        f"{run.name:<26}{run.steps:>7,}{run.events:>8,}{'yes' if run.c2st else 'no':>6}{expected_s(run):>12.0f}"
        for run in runs
    ]
    total_s = sum(map(expected_s, runs))
    lines.append(f"{len(runs)} runs, {total_s:,.0f} s of one core: {total_s / jobs / 60:.0f} min at {jobs} a time")
    return "\n".join(lines)
