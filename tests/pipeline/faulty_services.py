"""The faults that the environment names, put into a process of icestream before it runs its command.

Every process that the tests fork (zygote.py) calls arrange_faults; without one of the variables nothing is changed. A
Fault is met once, whichever process comes to its instant first: a file says by which.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from proc import fields

FAULT_VARIABLE = "FAULT"
"""Faults, as JSON; not ICESTREAM_…, which would be a setting."""
PACE_VARIABLE = "PACE"
"""With "0" no step does anything."""
BRAKE_VARIABLE = "BRAKE"
"""Steps of each trainer at full speed, seconds that each later one takes longer, and the file that ends this."""
LOSE_PATIENCE_VARIABLE = "LOSE_PATIENCE"
"""File from whose existence on the fetcher counts silence of decoders that SIGSTOP holds HASTE times."""
HASTE = 60
"""The default stall timeout takes 2 s for who is stopped, and two minutes for who only gets no core."""
STALL_TIMEOUT_VARIABLE = "STALL_TIMEOUT_S"
"""Stall timeout of the fetcher's decoders, instead of two minutes; a unit is tried again however many of them die."""
AGAIN_VARIABLE = "AGAIN_S"
"""Seconds until what may pass is tried again, instead of ten."""
SILENCE_VARIABLE = "SILENCE_S"
"""Seconds for which a server of a federation may be silent, instead of thirty."""
DIVERGE_VARIABLE = "DIVERGE"
"""Number of the step, counted from 1, that is told as one that left its updates out, by every trainer."""
STEP_TIMEOUT_VARIABLE = "STEP_TIMEOUT_S"
"""Seconds after which a rank counts as lost while all make steps, instead of five minutes."""
WARN_VARIABLE = "WARN"
"""Every step is a warning: no checkpoint is one to go back to."""

WGAN_STEP = "workloads.muons.models.wgan:WganTask.step"
STEPS = (WGAN_STEP, "workloads.base.module_training:NoModelTask.step")
"""A step of the default model, and of none."""


@dataclass(frozen=True)
class Fault:
    """One process of ``verb`` gets ``signal`` when it reaches ``instant`` for the ``nth`` time (counted from 1)."""

    verb: str
    instant: str
    """A key of INSTANTS."""
    signal: str = "SIGKILL"
    nth: int = 1
    marker: str = ""
    """File that says who met the fault: there is none until it has been met."""
    after: str = ""
    """Marker of the fault before this one: it can't happen, and nothing counts, until that one is over."""

    def may_happen(self) -> bool:
        """The victim of the fault before is dead, or was continued."""
        before = _read(Path(self.after)) if self.after else None
        return not self.after or (before is not None and not is_stopped(before.pid))


def environment(faults: Sequence[Fault], folder: Path) -> dict[str, str]:
    """Of the processes that shall meet the faults, one after the other, or start those that may."""
    markers = [str(_marker(folder, index)) for index in range(len(faults))]
    chain = zip(faults, markers, ["", *markers], strict=False)
    told = [asdict(replace(fault, marker=marker, after=after)) for fault, marker, after in chain]
    return {FAULT_VARIABLE: json.dumps(told)}


@dataclass(frozen=True)
class Met:
    """The fault happened."""

    pid: int
    told: str
    """What the process was about to do."""


def met(folder: Path, index: int = 0) -> Met | None:
    """Who met that fault; None as long as nobody has."""
    return _read(_marker(folder, index))


def is_stopped(pid: int) -> bool:
    """True while a process is held by SIGSTOP, or by its tracer."""
    return fields(pid)[:1] in (["T"], ["t"])


def meet(fault: Fault, told: str) -> None:
    """Do to this process what the fault says, unless it was done to one before."""
    marker = Path(fault.marker)
    draft = marker.with_name(f"{marker.name}.{os.getpid()}")
    draft.write_text(json.dumps({"pid": os.getpid(), "told": told}))
    try:
        os.link(draft, marker)  # whole, and only once
    except FileExistsError:
        return
    finally:
        draft.unlink()
    os.kill(os.getpid(), signal.Signals[fault.signal])


def _marker(folder: Path, index: int) -> Path:
    return folder / f"fault-{index}.json"


def _read(marker: Path) -> Met | None:
    try:
        return Met(**json.loads(marker.read_text()))
    except FileNotFoundError:
        return None


# ------------------------------------------------------------------ instants

Told = str | None


class Instant(NamedTuple):
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
    "after-writing-before-done": Instant("common.unit_arrays:write_header", True, always),
    "step": Instant(WGAN_STEP, False, at_unit),
    "between-checkpoint-write-and-rename": Instant("os:replace", False, is_checkpoint),
    "between-checkpoint-and-commit": Instant("os:replace", True, is_checkpoint),
    "before-finished": Instant(PEER_SEND, False, sends("Finished")),
    "staging": Instant("services.fetcher.staging:Stage.__call__", False, always),
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


def brake(told: str) -> None:
    """Have the steps of this trainer after the first ones take longer, until there is the file."""
    free_steps, pause_s, released = told.split(maxsplit=2)
    step = 0

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            nonlocal step
            step += 1
            until_s = time.monotonic() + (float(pause_s) if step > int(free_steps) else 0.0)
            while time.monotonic() < until_s and not Path(released).exists():
                time.sleep(0.01)
            return function(*arguments)

        return wrapped

    for function in STEPS:
        wrap(function, wrapper)


def lose_patience(told: str) -> None:
    """Have this fetcher count silence of stopped decoders many times, once there is the file: a short stall timeout for
    them, and none that a busy machine could exceed for the others."""

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(pool: Any, gap_s: float, stall_timeout_s: float) -> Any:
            for peer, decoder in pool.by_name.items():
                is_held = decoder.leases and not decoder.fenced and is_stopped(int(peer.partition("-")[0]))
                if is_held and Path(told).exists():
                    decoder.silent_s += HASTE * min(gap_s, 1.0)  # its own sleep is not theirs
            return function(pool, gap_s, stall_timeout_s)

        return wrapped

    wrap("services.fetcher.dispatcher_state:DecoderPool.silent", wrapper)


def with_options(function: str, **options: object) -> None:
    """Have this process call a method with other options."""
    wrap(function, lambda method: functools.partialmethod(method, **options))


def diverge(told: str) -> None:
    """Have one step of this trainer tell that it left an update out. It is made: the others take part in it."""
    import torch

    steps = itertools.count(1)

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(task: Any, batch: Any) -> Any:
            metrics = function(task, batch)
            return metrics | {"skipped_updates": torch.ones(())} if next(steps) == int(told) else metrics

        return wrapped

    wrap(WGAN_STEP, wrapper)


def train_at_once(told: str) -> None:
    """Have every step of this trainer end at once, with constant metrics."""
    import torch

    metrics = dict.fromkeys(("c_loss", "g_loss", "m_loss", "w_gap"), torch.zeros(()))
    if told == "0":
        wrap(WGAN_STEP, lambda function: lambda task, batch: dict(metrics))


def warn_always(told: str) -> None:
    """Have this trainer find every step a warning."""
    from services.trainer import health

    health.LIMITS = health.HealthLimits(warning_loss=1e-9)


def lose_silent_ranks(told: str) -> None:
    """Have this trainer take others for lost after so many seconds without a sign of life."""
    from services.trainer import ranks

    ranks.STEP_TIMEOUT_S = float(told)


def arrange_faults(verb: str) -> None:
    """Have this process, which is about to run ``icestream VERB``, meet what the environment names."""
    for fault in json.loads(os.environ.get(FAULT_VARIABLE, "[]")):
        if fault["verb"] == verb:
            arrange(Fault(**fault))
    stage_pool, dispatcher = "services.fetcher.staging:StagePool", "services.fetcher.dispatcher:Dispatcher"
    thread = "common.pelican.threads:PelicanThread.__init__"
    of_fetcher: dict[str, Callable[[str], None]] = {
        AGAIN_VARIABLE: lambda told: with_options(f"{stage_pool}.__init__", again_s=float(told)),
        STALL_TIMEOUT_VARIABLE: lambda told: with_options(
            f"{dispatcher}.__init__", stall_timeout_s=float(told), max_unit_deaths=1_000_000
        ),
        LOSE_PATIENCE_VARIABLE: lose_patience,
    }
    of_trainer: dict[str, Callable[[str], None]] = {
        BRAKE_VARIABLE: brake,
        PACE_VARIABLE: train_at_once,
        DIVERGE_VARIABLE: diverge,
        WARN_VARIABLE: warn_always,
        STEP_TIMEOUT_VARIABLE: lose_silent_ranks,
    }
    wanted = {SILENCE_VARIABLE: lambda told: with_options(thread, timeout_s=float(told))}
    wanted |= {"fetcher": of_fetcher, "trainer": of_trainer}.get(verb, {})
    for name, arrange_it in wanted.items():
        if told := os.environ.get(name):
            arrange_it(told)
