"""Expected cost of the runs, so that all of them fit into a quarter of an hour on two cores.

Seconds of CPU, measured with both cores busy; the actual times are in benchmarks/results/.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.physics.spec import CORSIKA_FILE, Run

STEP_S = {"wgan": 0.011, "likelihood": 0.0080, "count head": 0.0015, "simulator": 0.0}
"""Seconds of a step of 256 `bench` events, which have 4.6 muons each, and of the simulation of these events; the mean
over 2,000 of the WGAN."""
_MUONS = {"bench": 4.6, "heavy": 9.7, CORSIKA_FILE: 4.6}
"""Muons of an event; for the 11 CORSIKA showers with 1,175 muons a step, as if they were 256 events."""
_GENERATION_S = {"wgan": 0.46, "likelihood": 0.4, "count head": 0.1, "simulator": 0.1}
_DISTANCES_S, _COUNTS_S = 1.2, 0.1
_TAILS_S, _REAL_TAILS_S, _C2ST_S, _ATTENTION_S, _NATS_S = 0.05, 0.3, 11.0, 10.0, 5.0
"""Seconds for 100,000 events: generated; compared, or only their counts; in their tails; drawn for that; of a
classifier, of the exact likelihood. The classifier with attention has 20,000 events."""
_START_S, _ALONE_S = 0.6, 2.6
"""Seconds to start: of a run that shares its process with others, and of one alone."""
_NATS_EVENTS = 30_000
LIMIT_S = 1800.0
"""Limit on the sum of all runs: a quarter of an hour on two cores."""


def expected_s(run: Run) -> float:
    """Expected seconds of one core."""
    size = 1.0 if run.model == "count head" else _MUONS[run.source.preset] / _MUONS["bench"]
    training_s = run.steps * STEP_S[run.model] * size
    source = run.judged_by or run.source
    if source.preset == CORSIKA_FILE:
        return _START_S + training_s
    compared_s = _COUNTS_S if run.model == "count head" else _DISTANCES_S
    evaluation_s = run.generations * run.events * (_GENERATION_S[run.model] + compared_s)
    repeats = run.generations if run.model == "simulator" else 1
    evaluation_s += run.tail_events * (repeats * (_GENERATION_S[run.model] + _TAILS_S) + _REAL_TAILS_S)
    if run.model != "simulator":
        evaluation_s += run.c2st_events * _C2ST_S
    if run.model == "likelihood":
        evaluation_s += min(run.events, _NATS_EVENTS) * _NATS_S
    evaluation_s *= _MUONS[source.preset] / _MUONS["bench"] / 100_000
    evaluation_s += _ATTENTION_S if run.attention and run.model != "simulator" else 0.0
    return (_ALONE_S if run.tail_events else _START_S) + training_s + evaluation_s


def plan(runs: Sequence[Run], jobs: int) -> str:
    """Table with a line for each run, and the sum."""
    lines = [f"{'run':<26}{'steps':>7}{'events':>8}{'C2ST':>8}{'expected s':>12}"]
    lines += [
        f"{run.name:<26}{run.steps:>7,}{run.events:>8,}{run.c2st_events:>8,}{expected_s(run):>12.0f}" for run in runs
    ]
    total_s = sum(map(expected_s, runs))
    lines.append(f"{len(runs)} runs, {total_s:,.0f} s of one core: {total_s / jobs / 60:.0f} min at {jobs} a time")
    return "\n".join(lines)
