"""The faults that the environment names, put into a process of icestream before it runs its command.

Every process that the tests fork (`zygote.py`) calls `arrange_faults`; without one of the variables nothing is changed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import VARIABLE, Fault, faults_of, is_stopped, meet

PACE_VARIABLE = "PACE"
"""With "0" no step does anything."""

BRAKE_VARIABLE = "BRAKE"
"""Steps of each trainer at full speed, seconds that each later one takes longer, and the file that ends this."""

DECODER_PAUSE_VARIABLE = "DECODER_PAUSE_S"
"""Seconds that each decoder takes longer for a unit."""

LOSE_PATIENCE_VARIABLE = "LOSE_PATIENCE"
"""File from whose existence on the fetcher counts silence of decoders that SIGSTOP holds HASTE times."""

HASTE = 60
"""The default stall timeout takes 2 s for who is stopped, and two minutes for who only gets no core."""

AGAIN_VARIABLE = "AGAIN_S"
"""Seconds until what may pass is tried again, instead of ten."""

DIVERGE_VARIABLE = "DIVERGE"
"""Unit and number of times that a step with data of it finds no number, and leaves its updates out: "8 1"."""

DIVERGE_TOGETHER_VARIABLE = "DIVERGE_TOGETHER"
"""Number of the step, counted from 1, that is told as one that left its updates out, by every trainer."""

STEPS = ("services.trainer.loop:TrainingLoop.step", "services.trainer.counting.loop:CountingLoop.step")
"""A step of a trainer with a model, and of the one that only counts."""

Told = str | None


@dataclass(frozen=True)
class Instant:
    """Before or after a call of ``function``, if ``tells`` says so."""

    function: str
    """module:attribute, or module:class.method."""
    after: bool
    tells: Callable[[tuple[Any, ...], Any], Told]
    """From the call's positional arguments and (after the call) its result: what is told of the instant; None: this
    call is not it."""


def always(arguments: tuple[Any, ...], result: Any) -> Told:
    return "reached"


def sends(name: str) -> Callable[[tuple[Any, ...], Any], Told]:
    """One of the positional arguments is a message of that class."""
    return lambda arguments, result: next((f"{a}"[:300] for a in arguments if type(a).__name__ == name), None)


def tear(arguments: tuple[Any, ...], result: Any) -> Told:
    """Half of the slot is written: nobody may ever read this."""
    for column in (result.offsets, result.microbatch_bounds, *result.particle_columns.values()):
        column.view("u1")[: column.nbytes // 2] = 0xA5
    return "a torn slot"


def waited_in_vain(arguments: tuple[Any, ...], result: Any) -> Told:
    """A process that had nothing to do waited for a message, and none came."""
    return "nothing to do" if result is None and arguments[1] > 0 else None


def at_unit(arguments: tuple[Any, ...], result: Any) -> Told:
    last = arguments[1].microbatches[-1]
    return json.dumps({"unit": last.unit, "microbatch": last.index})


def is_checkpoint(arguments: tuple[Any, ...], result: Any) -> Told:
    source, target = (Path(argument) for argument in arguments[:2])
    return source.name if target.parent.name == "checkpoints" and source.suffix == ".part" else None


def hears_the_end(arguments: tuple[Any, ...], result: Any) -> Told:
    names = [type(getattr(event, "message", None)).__name__ for event in result]
    return "Finished" if "Finished" in names else None


SERVER_SEND = "common.transport:ServerTransport.send"
PEER_SEND = "common.transport:PeerTransport.send"

INSTANTS = {
    "idle": Instant("common.transport:PeerTransport.receive", True, waited_in_vain),
    "decoding": Instant("services.decoder.decode:unit_arrays", True, tear),
    "after-writing-before-done": Instant("common.ragged:write_header", True, always),
    "step": Instant("workloads.muons.models.wgan.task:WganTask.step", False, at_unit),
    "between-checkpoint-write-and-rename": Instant("os:replace", False, is_checkpoint),
    "between-checkpoint-and-commit": Instant("os:replace", True, is_checkpoint),
    "before-finished": Instant(PEER_SEND, False, sends("Finished")),
    "staging": Instant("services.fetcher.staging.stage:Stage.__call__", False, always),
    "leasing": Instant(SERVER_SEND, False, sends("Lease")),
    "delivering": Instant(SERVER_SEND, False, sends("DeliveredUnit")),
    "hearing-that-all-is-trained": Instant("common.transport:ServerTransport.poll", True, hears_the_end),
}


def wrap(function: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``wrapper(function)`` in the function's place, also where it was imported by name from the module."""
    module, _, path = function.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    real = getattr(owner, name)
    is_defined_here = not classes and real.__module__ == module
    places = [each for each in sys.modules.values() if vars(each).get(name) is real] if is_defined_here else [owner]
    wrapped = wrapper(real)
    for place in places:
        setattr(place, name, wrapped)


def arrange(fault: Fault) -> None:
    """Have this process meet the fault at its instant."""
    instant = INSTANTS[fault.instant]
    times = 0

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal times
            result = function(*arguments, **options) if instant.after else None
            told = instant.tells(arguments, result)
            if told is not None and fault.may_happen():
                times += 1
                if times == fault.nth:
                    meet(fault, told)
            return result if instant.after else function(*arguments, **options)

        return wrapped

    wrap(instant.function, wrapper)


def brake(free_steps: int, pause_s: float, released: Path) -> None:
    """Have the steps of this trainer after the first ones take longer, until there is the file."""
    step = 0

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            nonlocal step
            step += 1
            until_s = time.monotonic() + (pause_s if step > free_steps else 0.0)
            while time.monotonic() < until_s and not released.exists():
                time.sleep(0.01)
            return function(*arguments)

        return wrapped

    for function in STEPS:
        wrap(function, wrapper)


def pause_decoder(pause_s: float) -> None:
    """Have this decoder take so much longer for each unit."""

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            time.sleep(pause_s)
            return function(*arguments)

        return wrapped

    wrap("services.decoder.decode:unit_arrays", wrapper)


def lose_patience(lost: Path) -> None:
    """Have this fetcher count silence of stopped decoders many times, once there is the file: a short stall timeout for
    them, and none that a busy machine could exceed for the others."""

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(pool: Any, gap_s: float, stall_timeout_s: float) -> Any:
            for peer, decoder in pool.by_name.items():
                if decoder.leases and not decoder.fenced and is_stopped(int(peer.partition("-")[0])) and lost.exists():
                    decoder.silent_s += HASTE * min(gap_s, 1.0)  # its own sleep is not theirs
            return function(pool, gap_s, stall_timeout_s)

        return wrapped

    wrap("services.fetcher.dispatcher.decoder_pool:DecoderPool.silent", wrapper)


def try_again_after(seconds: float) -> None:
    """Have this fetcher stage again what may pass after so long."""
    wrap(
        "services.fetcher.staging.stage_pool:StagePool.__init__",
        lambda function: functools.partialmethod(function, again_s=seconds),
    )


def diverge(unit: int, times: int) -> None:
    """Have the first steps of this trainer with data of ``unit`` leave their updates out."""
    import torch

    met = 0

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(task: Any, batch: Any) -> Any:
            nonlocal met
            if met < times and any(part.unit == unit for part in batch.microbatches):
                met += 1
                return {
                    "w_gap": torch.tensor(1.0),
                    "c_loss": torch.tensor(torch.nan),
                    "skipped_updates": torch.ones(()),
                }
            return function(task, batch)

        return wrapped

    wrap("workloads.muons.models.wgan.task:WganTask.step", wrapper)


def diverge_together(at_step: int) -> None:
    """Have one step of this trainer tell that it left an update out. It is made: the others take part in it."""
    import torch

    step = 0

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(task: Any, batch: Any) -> Any:
            nonlocal step
            step += 1
            metrics = function(task, batch)
            return metrics | {"skipped_updates": torch.ones(())} if step == at_step else metrics

        return wrapped

    wrap("workloads.muons.models.wgan.task:WganTask.step", wrapper)


def train_at_once() -> None:
    """Have every step of this trainer end at once, with constant metrics."""
    import torch

    names = ("c_loss", "g_loss", "m_loss", "w_gap")
    metrics = dict.fromkeys(names, torch.zeros(()))
    wrap("workloads.muons.models.wgan.task:WganTask.step", lambda function: lambda task, batch: dict(metrics))


def arrange_faults(verb: str) -> None:
    """Have this process, which is about to run ``icestream VERB``, meet what the environment names."""
    told = os.environ
    if VARIABLE in told:
        for fault in faults_of(told[VARIABLE]):
            if fault.verb == verb:
                arrange(fault)
    if AGAIN_VARIABLE in told and verb == "fetcher":
        try_again_after(float(told[AGAIN_VARIABLE]))
    if LOSE_PATIENCE_VARIABLE in told and verb == "fetcher":
        lose_patience(Path(told[LOSE_PATIENCE_VARIABLE]))
    if DECODER_PAUSE_VARIABLE in told and verb == "decoder":
        pause_decoder(float(told[DECODER_PAUSE_VARIABLE]))
    if verb != "trainer":
        return
    if BRAKE_VARIABLE in told:
        free_steps, pause, released = told[BRAKE_VARIABLE].split(maxsplit=2)
        brake(int(free_steps), float(pause), Path(released))
    if told.get(PACE_VARIABLE) == "0":
        train_at_once()
    if DIVERGE_VARIABLE in told:
        unit, times = told[DIVERGE_VARIABLE].split()
        diverge(int(unit), int(times))
    if DIVERGE_TOGETHER_VARIABLE in told:
        diverge_together(int(told[DIVERGE_TOGETHER_VARIABLE]))
