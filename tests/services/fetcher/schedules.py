"""Random schedules of the dispatcher by the ten thousand; what happens in one of them stands in simulated_run.py.

    python tests/services/fetcher/schedules.py --schedules 100000 [--first SEED]

Without --first the seeds begin anywhere, so that runs of CI add up. The first one is printed, and any that fails.
"""

from __future__ import annotations

import logging
import random
import sys
import time

import click
from simulated_run import SimulatedRun

_TRANSITIONS = logging.getLogger("services.fetcher")
_TELL_EVERY = 10_000


def check(seed: int, *, trainers_leave: bool = False) -> None:
    """Run one schedule. Raises AssertionError, which names the seed, for a broken promise."""
    _TRANSITIONS.setLevel(logging.CRITICAL)  # every transition is logged: here that would be most of the time
    try:
        SimulatedRun(seed, trainers_leave=trainers_leave).run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        _TRANSITIONS.setLevel(logging.NOTSET)


@click.command()
@click.option("--schedules", default=100_000, show_default=True, help="How many to try.")
@click.option("--first", type=int, help="The first seed; one at random if it is not given.")
def main(schedules: int, first: int | None) -> None:
    """Try random schedules of the dispatcher, its peers and their faults."""
    first = random.SystemRandom().randrange(10**9) if first is None else first
    print(f"{schedules} schedules from seed {first}", flush=True)
    started_s = time.process_time()
    for number in range(schedules):
        check(first + number, trainers_leave=number % 4 == 3)
        if (number + 1) % _TELL_EVERY == 0:
            print(f"{number + 1} schedules, {time.process_time() - started_s:.0f} s of CPU time", flush=True)
    print(f"{schedules} schedules from seed {first}: no promise was broken")


if __name__ == "__main__":
    sys.exit(main())
