"""Faults of a simulated run (simulated_run.py): deaths, hangs, suspended processes, messages out of place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_peers import EVENTS, FILLED, PLAN

from common import messages as m
from services.fetcher.dispatcher import Send

if TYPE_CHECKING:
    from simulated_run import SimulatedRun

FAULTS = (
    *("kill", "hang", "hang", "stop", "wake", "leave", "retire", "trainer", "trainer", "fetcher", "rubbish"),
    *("pause trainer", "pause fetcher", "pause fetcher", "pause all"),
)


def inject_fault(run: SimulatedRun) -> None:
    """One fault of a random kind, if it finds a victim."""
    rng = run.rng
    names = list(run.decoders)
    kind = rng.choice(FAULTS)
    if kind == "trainer" and run.trainers:
        for one in list(run.trainers):  # the others can't go on without it
            run.kill(one)
    elif kind == "fetcher" and rng.random() < 0.5:
        run.kill_fetcher()
    elif kind == "rubbish":
        _send_rubbish(run)
    elif kind in ("pause fetcher", "pause all"):
        run.now_s += rng.uniform(1.0, 300.0)
        run.pauses += 1
        run.asleep = rng.randint(0, 60) if kind == "pause fetcher" else 0
    elif kind == "pause trainer" and run.trainers:
        rng.choice(list(run.trainers.values())).paused = rng.randint(1, 40)
    elif kind == "retire":
        run.act(run.dispatcher.retire())
    elif names:
        name = rng.choice(names)
        if kind == "kill":
            run.kill(name)
        elif kind == "leave" and not run.decoders[name].hung and run.decoders[name].writing is None:
            run.leave(name)
        elif not run.decoders[name].undead:
            run.decoders[name].hung = kind in ("hang", "stop")
            run.decoders[name].stopped = kind == "stop"


def _send_rubbish(run: SimulatedRun) -> None:
    """A message that nobody should have sent: from a stranger, or from a peer of another part, or out of date."""
    rng = run.rng
    k, lease = rng.randint(0, run.num_units), rng.randint(0, 9)
    name = rng.choice(["nobody", *run.decoders, *run.trainers])
    for_trainers = (m.Want(2), m.Release(k), m.Committed(m.Cursor()), m.Finished())
    for_decoders = (m.Done(k, lease, FILLED, m.Tally(rows_read=EVENTS)), m.Failed(k, lease, "?"), m.Bye(), m.Beat())
    if name in run.trainers:  # of which a Bye would be meant
        messages = tuple(message for message in for_decoders if not isinstance(message, m.Bye))
    elif name in run.decoders:
        messages = for_trainers
    else:
        messages = (*for_trainers, *for_decoders)
    run.act(run.dispatcher.handle(name, rng.choice(messages), run.now_s))
    if run.dispatcher.trainers:  # whoever else wants their places is told so, and changes nothing
        (refused,) = run.dispatcher.handle("second", m.Attach(99, 100, PLAN, m.Cursor()), run.now_s)
        assert isinstance(refused, Send)
        assert isinstance(refused.message, m.Refuse)
