"""One of several real ranks over gloo, as a process: tries what ranks do with each other.

python gloo_rank.py sums|task|leaves|freezes|falls-silent FOLDER          (with the environment of a rank)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from toy_events import toy_microbatch
from toy_tasks import SMALL, without_noise

from common.process import StopFlag, end_after_stop
from services.trainer import ranks as module
from services.trainer.environment import place_from
from services.trainer.ranks import RankLost, Ranks
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

CPU = torch.device("cpu")
CONFIG = WganConfig(network=SMALL, likelihood_steps=1, penalty_weight=10.0, critic_steps=3)
EVENTS = (24, 40)
"""Of each microbatch in the first step."""


def train(numbers: tuple[int, ...], ranks: Ranks) -> dict[str, object]:
    """Steps of the microbatches of these numbers; the last step has only the first. Metrics, and weights.

    Without noise: that of a microbatch depends on which others its rank has.
    """
    zeros = patch.object(torch, "randn", lambda *shape, **_: torch.zeros(shape))
    with zeros, without_noise():
        return curve_and_weights(numbers, ranks)


def curve_and_weights(numbers: tuple[int, ...], ranks: Ranks) -> dict[str, object]:
    task = WganTask(CONFIG, StepContext(CPU, 3, sum_over_ranks=ranks.sum_))
    curve = []
    for step in range(6):
        whole = {}
        for number, num_events in enumerate(EVENTS):
            if not (step == 5 and number == 1):
                whole[number] = replace(toy_microbatch(num_events, 10 * step + number, None), number=number)
        batch = Batch(tuple(part for number, part in whole.items() if number in numbers))
        events = sum(part.num_events for part in whole.values())
        particles = sum(part.num_particles for part in whole.values())
        curve.append({name: float(value) for name, value in task.step(batch.among(events, particles)).items()})
    parameters = [parameter for network in task.networks.modules().values() for parameter in network.parameters()]
    means = [task.networks.standardise.condition_mean_C, task.networks.standardise.feature_spread_F]
    return {"curve": curve, "weights": torch.cat([one.detach().reshape(-1) for one in (*parameters, *means)]).tolist()}


def sums(ranks: Ranks) -> dict[str, object]:
    single, number = torch.full((2, 3), float(ranks.rank + 1)), torch.tensor(2.0)
    double = torch.tensor([0.5], dtype=torch.float64)
    ranks.sum_([single, double, number])
    state = {"weights": torch.arange(3), "text": "é"} if ranks.is_first else None
    received = ranks.broadcast(state)
    return {
        "sums": [single.tolist(), double.tolist(), float(number)],
        "short": ranks.gather(f"é{ranks.rank}"),
        "long": [len(text) for text in ranks.gather("x" * 3000 * ranks.rank)],
        "state": [received["weights"].tolist(), received["text"]],
        "none": ranks.broadcast({} if ranks.is_first else None),
    }


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    place = place_from(os.environ)
    assert place is not None
    ranks = Ranks.join(place, CPU, timeout_s=60, stopped=lambda: False)
    if what == "leaves":
        group = Ranks.of_callers_group() if sys.argv[4:] else ranks
        if ranks.rank == int(sys.argv[3]):
            os._exit(3)
        try:
            while True:
                group.gather("here")
        except RankLost as lost:
            sys.stdout.write(f"{lost}\n")
            sys.stdout.flush()
            (folder / f"told-{ranks.rank}").touch()
            while len(list(folder.glob("told-*"))) < ranks.size - 1:  # the others learn of it before this one ends
                time.sleep(0.01)
            os._exit(0)
    if what == "falls-silent":
        module.STEP_TIMEOUT_S = 1.0
        ranks.begin_steps(CPU)
        ranks.gather("before")
        if not ranks.is_first:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            ranks.gather("after")
        except RankLost as lost:
            sys.stdout.write(f"{lost}\n")
            sys.stdout.flush()
            os._exit(0)
    if what == "freezes":
        if not ranks.is_first:
            os.kill(os.getpid(), signal.SIGSTOP)
        StopFlag()
        end_after_stop(0.05)
        sys.stdout.write("waits\n")
        sys.stdout.flush()
        ranks.sum_([torch.ones(2)])
    told = sums(ranks) if what == "sums" else train((ranks.rank,), ranks)
    (folder / f"{ranks.rank}.json").write_text(json.dumps(told))
    ranks.close()


if __name__ == "__main__":
    main()
