"""Schedule of the stages within the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.gpu.channel import Finding
from benchmarks.gpu.stages import Stage

Measure = Callable[[Stage, float], Finding]
"""Finding of a stage, within that many seconds."""

LEAST_SHARE = 0.5
"""A stage that would have less than this part of its limit is left out: it would end in the middle."""


def run_stages(
    stages: Sequence[Stage],
    *,
    is_cuda: bool,
    end_s: float,
    measure: Measure,
    say: Callable[[str], None],
    clock_s: Callable[[], float] = time.monotonic,
) -> Iterator[Finding]:
    """Findings of all stages, in order, each as soon as it is there; none runs beyond ``end_s``.

    A stage may take its limit and what the ones before it have left over, but not the limits of those behind it.
    """
    reasons = {stage.name: stage.reason_to_skip(is_cuda=is_cuda) for stage in stages}
    for number, stage in enumerate(stages):
        reason = reasons[stage.name]
        behind_s = sum(other.limit_s for other in stages[number + 1 :] if not reasons[other.name])
        left_s = end_s - clock_s() - behind_s
        if not reason and left_s < LEAST_SHARE * stage.limit_s:
            reason = f"no time left: {max(left_s, 0.0):.0f} s of the {stage.limit_s:.0f} s that it may take"
        if reason:
            say(f"{stage.name}: skipped, {reason}")
            yield Finding(stage.name, "skipped", reason)
            continue
        say(f"{stage.name}: {stage.title} (at most {left_s:.0f} s)")
        finding = measure(stage, left_s)
        say(f"{stage.name}: {finding.state}{f', {finding.reason}' if finding.reason else ''}, {finding.seconds:.1f} s")
        yield finding
        if finding.state == "interrupted":
            return
