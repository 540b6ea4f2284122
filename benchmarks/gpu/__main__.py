"""First hour on a GPU in at most eight minutes: does it train here, and right, how fast is a step against the plain one
and the card's own ceilings, and is the GPU busy in a run from files?

    python -m benchmarks.gpu                       # the first GPU; page and JSON to benchmarks/results/
    python -m benchmarks.gpu --again PAGE.json     # what failed or was left out, in at most four minutes
    python -m benchmarks.gpu --device cpu --quick  # tiny sizes: does the command itself work here?

Needs what `icestream run` needs; `first_hour.sh` brings it where nothing can be downloaded. There are no kernels of our
own any more, and so nothing for compute-sanitizer. Exit code: 1 if a stage or a check failed (the others are measured
all the same), 2 if the command can't start. A GPU that others use makes all figures worthless.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.page import ROOT, Measurement, read_findings
from benchmarks.gpu.processes import QUICK, Schedule, Setting, Stage, new_finding
from common.errors import BadInputError
from icestream.version import commit
from services.trainer.environment import prepare

BUDGET_S, AGAIN_S = 480.0, 240.0
MACHINE = Stage("machine", 20, "steps:describe")
STAGES = (
    Stage("trains", 30, "checks:trains"),
    Stage("ceilings", 10, "steps:ceilings"),
    Stage("step", 70, "steps:step"),
    Stage("compiled", 75, "steps:compiled", only_cuda=True),
    Stage("compiled-bf16", 45, "steps:compiled_bf16", only_cuda=True),
    Stage("checks", 25, "checks:step"),
    Stage("runs", 75, "checks:from_files"),
    Stage("models", 22, "steps:others"),
    Stage("segments", 10, "steps:segments"),
    Stage("kernels", 12, "steps:kernels"),
    Stage("copies", 8, "steps:copies"),
    Stage("memory", 35, "checks:memory"),
    Stage("ranks", 15, "checks:ranks"),
    Stage("tests", 28, "checks:tests"),
)
"""Most telling first. The limits add up to the budget: a stage may take its own, and what those before it have left."""
USER_ERROR, INTERRUPTED = 2, 130


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu (default: cuda)")
    parser.add_argument("--only", choices=[stage.name for stage in STAGES], action="append", help="only this stage")
    parser.add_argument("--again", type=Path, metavar="PAGE.json", help="only what this measurement lacks")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it work?")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the page")
    given, begun_s = parser.parse_args(), time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun_s:5.0f} s  {text}", flush=True)

    def save() -> None:
        measurement.seconds = time.monotonic() - begun_s
        measurement.write(given.output)

    try:
        measurement, stages = planned(given)
    except BadInputError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    if given.again and len(stages) == 1:
        print(f"{given.again}: nothing is missing")
        return 0
    findings = measurement.findings
    prepare(os.environ, deterministic=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is written then, too
    end_s = begun_s + sum(stage.limit_s for stage in stages)
    with suppress(KeyboardInterrupt):  # outside of a stage
        Schedule(measurement.setting, findings, end_s, say, save).run(stages)
    for one in findings:
        one["state"] = one["state"].replace("running", "interrupted")
    was_interrupted = len(findings) < len(stages) or findings[-1]["state"] == "interrupted"
    findings += [new_finding(stage.name) | {"state": "not begun"} for stage in stages[len(findings) :]]
    save()
    if measurement.path is None:
        reason = findings[0]["reason"]
        is_missing = "No module named" in reason
        print(reason + " (benchmarks/gpu/first_hour.sh brings it along)" * is_missing, file=sys.stderr)
        return USER_ERROR
    say(f"written: {measurement.path} and .json")
    if was_interrupted:
        return INTERRUPTED
    return int(any(one["state"] == "failed" or one["failures"] for one in findings))


def planned(given: argparse.Namespace) -> tuple[Measurement, list[Stage]]:
    """Return an empty measurement, and the stages with their limits. Raises BadInputError."""
    if find_spec("torch") is None:
        raise BadInputError("this Python has no torch: take one of an image with CUDA, or install it")
    try:
        given.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=given.output):
            pass
    except OSError as error:
        raise BadInputError(f"--output {given.output}: can't write there ({error.strerror})") from None
    earlier = read_findings(given.again) if given.again else []
    rows = [row for one in earlier for row in one["rows"]]
    known = frozenset((row["variant"], row["precision"], row["events"]) for row in rows if row["table"] == "step")
    is_cuda = given.device.startswith("cuda")
    setting = Setting(given.device, is_cuda, known, **(QUICK if given.quick else {}))
    words = ["python -m benchmarks.gpu --device", given.device, *(f"--only {name}" for name in given.only or ())]
    words += [f"--again {given.again.name}"] if given.again else []
    words += ["--quick"] if given.quick else []
    complete = {one["name"] for one in earlier if one["state"] in ("done", "not here") and not one["left_out"]}
    stages = [stage for stage in STAGES if stage.name not in complete]
    if given.only:  # a stage that is asked for by name is rehearsed on a CPU, too
        stages = [stage._replace(only_cuda=False) for stage in stages if stage.name in given.only]
    stages = [MACHINE, *stages]
    # Nobody waits for a CPU that has other work: there the question is only whether everything works.
    patience = 10 if given.quick and not is_cuda else 1
    share = patience * (AGAIN_S if given.again else BUDGET_S) / sum(stage.limit_s for stage in stages)
    stages = [stage._replace(limit_s=share * stage.limit_s) for stage in stages]
    return Measurement(" ".join(words), commit() or "unknown", setting, given.quick, rows), stages


if __name__ == "__main__":
    sys.exit(main())
