"""Words on a run from the statuses of its services, for every display: bottleneck, remaining time, a line. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from common.status import WINDOW_S, FetcherStatus, GpuStatus, TimeShares, TrainerStatus
from common.text import compact_duration, duration

_REASONS = {
    "trainer": ("no_free_slot", "no free slot"),
    "decoders": ("no_credit", "no credit"),
    "staging": ("not_staged", "next files not staged yet"),
}
_ENDED = ("finished", "stopped")
BUSY_SHARE = 0.1
"""Share of the time from which a wait names a bottleneck."""
COMPUTE_BOUND_SHARE = 0.5
"""Share of the time in which data wait for the training step, from which the trainer is the bottleneck."""
STAGES = {reason: stage for stage, (reason, _) in _REASONS.items()}
_LOSSES_SHOWN = 2


def done_share(fetcher: FetcherStatus | None, trainer: TrainerStatus | None) -> float | None:
    """Part (0 to 1) of the run that is done: of max_steps or of the epochs, whichever ends sooner. None if unknown."""
    if trainer is None:
        return None
    if trainer.state == "finished":
        return 1.0
    shares = [trainer.step / trainer.max_steps] if trainer.max_steps else []
    all_listed = fetcher is not None and fetcher.ranges_listed >= fetcher.ranges
    is_planned = fetcher is not None and fetcher.files_planned and fetcher.events_planned and not fetcher.is_of_set
    if trainer.epochs and fetcher is not None and is_planned and all_listed:
        events_total = fetcher.events_planned / fetcher.files_planned * fetcher.files_total
        shares.append(trainer.counters.events_read / events_total)
    return min(max(shares), 1.0) if shares else None


def expected_steps(trainer: TrainerStatus, share: float | None) -> int | None:
    """Step at the end of the run. None if unknown."""
    return round(trainer.step / share) if share and trainer.step else trainer.max_steps or None


def remaining_s(fetcher: FetcherStatus | None, trainer: TrainerStatus | None) -> float | None:
    """Seconds to the end of the run at the present speed; see done_share. None if it is unknown."""
    share = done_share(fetcher, trainer)
    if trainer is None or trainer.state != "training" or trainer.events_per_s <= 0 or not share:
        return None
    return (1 / share - 1) * trainer.counters.events_trained / trainer.events_per_s


def done_words(share: float, events_read: int) -> str:
    """Part of the run that is done, and of its events."""
    total = f" of {round(events_read / share):,}" if share else ""
    return f"{100 * share:.0f} %  {events_read:,}{total} events"


def bottleneck(fetcher: FetcherStatus, trainer: TrainerStatus | None = None) -> str:
    """Stage that the others wait for, the reason, and a remedy that keeps the plan (so that the run can be resumed)."""
    if fetcher.state == "finished" or (trainer is not None and trainer.state in _ENDED):
        return "none, the run is ending"
    if fetcher.state == "listing":
        return "none yet, the inputs are being listed"
    if fetcher.state == "waiting for a trainer" or (trainer is not None and trainer.state == "starting"):
        return "none yet, the trainer is starting"
    if fetcher.decoders == 0:
        return "decoders (none is connected)"
    if trainer is None:  # the stream is read in Python
        return fetcher.bottleneck
    waits = f"waits for data {100 * trainer.wait_fraction:.0f} % of the time"
    if fetcher.bottleneck == "none":
        if trainer.batches.wait_put_share < COMPUTE_BOUND_SHARE:
            return f"none (the trainer {waits})"
        return f"trainer (compute-bound: {waits}) - {_faster_training(trainer)}"
    reason, words = _REASONS[fetcher.bottleneck]
    why = f"{words} {100 * fetcher.stall_shares.get(reason, 0.0):.0f} % of the last {WINDOW_S:.0f} s"
    match fetcher.bottleneck:
        case "trainer" if trainer.wait_fraction >= COMPUTE_BOUND_SHARE:
            return f"slots ({why}, and the trainer {waits}) - a larger stream.slots helps"
        case "trainer":
            return f"trainer (compute-bound: {why}) - {_faster_training(trainer)}"
        case "decoders" if fetcher.decoders_wanted:
            return f"decoders ({why}) - more are added as cores and local.max_decoders allow"
        case "decoders":
            return f"decoders ({why}) - add some with --decoders"
        case _:
            return f"staging ({why}) - the network or the disk is slow; more fetcher.transfers may help"


def _faster_training(trainer: TrainerStatus) -> str:
    if trainer.device.startswith("cuda"):
        return "a larger stream.batch_events or a faster GPU helps"
    return "trainer.threads=0 (every core) or --device cuda helps"


def bottleneck_of_the_hour(fetcher: FetcherStatus | None, trainer: TrainerStatus | None) -> str:
    """Stage that the others waited for most in the last hour, with the shares of time; empty while unknown."""
    stalls = fetcher.last_hour if fetcher is not None else TimeShares()
    waits = trainer.last_hour if trainer is not None else TimeShares()
    if not (stalls.seconds or waits.seconds):
        return ""
    span = duration(max(stalls.seconds, waits.seconds))
    starved = f"the trainer waited for data {100 * waits.shares['get']:.0f} %" if "get" in waits.shares else ""
    reason = max(stalls.shares, key=lambda name: stalls.shares[name], default="")
    if reason and stalls.shares[reason] >= BUSY_SHARE:
        stage = STAGES[reason]
        why = f"{_REASONS[stage][1]} {100 * stalls.shares[reason]:.0f} % of the last {span}"
    elif waits.shares.get("put", 0.0) >= COMPUTE_BOUND_SHARE:
        stage, why = "trainer", f"its next batch was ready {100 * waits.shares['put']:.0f} % of the last {span}"
    else:
        stage, why = "none", f"the last {span}"
    return f"{stage} ({'; '.join(part for part in (why, starved) if part)})"


def files_words(fetcher: FetcherStatus, trainer: TrainerStatus | None) -> str:
    """Number of files of an epoch, the epoch, and what is wrong or still to be listed."""
    num_files = fetcher.files_total // max(1, fetcher.epochs)
    epoch = f", epoch {epoch_words(trainer)}" if trainer is not None else ""
    bad = f", {fetcher.files_bad:,} bad" if fetcher.files_bad else ""
    ranges = f", range {fetcher.ranges_listed} of {fetcher.ranges} listed" if fetcher.ranges > 1 else ""
    return f"{num_files:,}{epoch}{bad}{ranges}"


def epoch_words(trainer: TrainerStatus) -> str:
    """Current epoch, from 1, of the number of epochs, if there is one."""
    if not trainer.epochs:
        return f"{trainer.epoch + 1}"
    return f"{min(trainer.epoch + 1, trainer.epochs)}/{trainer.epochs}"


def step_words(trainer: TrainerStatus) -> str:
    """Current step, and the last one if max_steps names one still to come."""
    return f"{trainer.step:,}/{trainer.max_steps:,}" if trainer.max_steps >= trainer.step > 0 else f"{trainer.step:,}"


def loss_words(losses: Mapping[str, float], most: int | None = None) -> str:
    """Newest losses, the first ``most`` of them."""
    return " ".join(f"{name} {value:.3g}" for name, value in list(losses.items())[:most])


def health_words(trainer: TrainerStatus) -> str:
    """Health and rollbacks of the training; empty if it is healthy and never went back."""
    if trainer.health == "healthy" and not trainer.rollbacks:
        return ""
    text = trainer.health if trainer.health == "healthy" else f"{trainer.health}: {trainer.health_reason}"
    if trainer.rollbacks:
        text += f"; went back to a good checkpoint {counted(trainer.rollbacks, 'time')} (see health.jsonl)"
    return text


def counted(number: int, thing: str) -> str:
    """Number with its noun: `1 decoder`, `2 decoders`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def progress_line(
    fetcher: FetcherStatus | None,
    trainer: TrainerStatus | None,
    restarts: Mapping[str, int],
    elapsed_s: float,
    *,
    stopping: bool = False,
) -> str:
    """State of a run in one short line: time since the start, step, epoch, rate, waits, losses, time left, troubles."""
    parts = [clock(elapsed_s)]
    if trainer is None or trainer.state == "starting":
        start = "starting" if fetcher is None else "the trainer is starting"
        if fetcher is not None and fetcher.state == "listing":
            start = f"listing the inputs ({fetcher.listed or 'waiting for the first answer'})"
        parts.append("stopping" if stopping else start)
    else:
        share = done_share(fetcher, trainer)
        parts += [f"{100 * share:.0f} %"] if share is not None else []
        parts.append(training_words(trainer))
        left_s = remaining_s(fetcher, trainer)
        parts += [trainer.state] if trainer.state != "training" else []
        parts += [f"ETA {compact_duration(left_s)}"] if left_s is not None and math.isfinite(left_s) else []
        parts += [f"health {health}"] if (health := health_words(trainer)) else []
    if fetcher is not None and fetcher.files_bad:
        parts.append(f"bad files {fetcher.files_bad:,}")
    if restarted := restart_words(restarts):
        parts.append(f"restarts {restarted}")
    if fetcher is not None and fetcher.problem:
        parts.append(f"PROBLEM {fetcher.problem}")
    return " ".join(parts)


def training_words(trainer: TrainerStatus) -> str:
    """Step, epoch, rate, waits and losses in a short line."""
    parts = [f"step {step_words(trainer)} ep {epoch_words(trainer)}"]
    parts.append(f"{trainer.events_per_s:,.0f} ev/s wait {100 * trainer.wait_fraction:.0f}%")
    if (gpu := trainer.gpu) is not None:  # load, and memory in GiB: mean and largest of the tensors, reserved
        memory = (gpu.allocated_mean_bytes, gpu.allocated_max_bytes, gpu.reserved_bytes)
        gib = "/".join("?" if number is None else f"{number / 2**30:.1f}" for number in memory)
        parts.append(f"gpu{f' {100 * gpu.utilisation:.0f}%' if gpu.utilisation is not None else ''} {gib}GiB")
    parts += [loss_words(trainer.losses, _LOSSES_SHOWN)] if trainer.losses else []
    return " ".join(parts)


def gpu_words(gpu: GpuStatus | None) -> str:
    """Load and memory of the GPU; empty without one."""
    if gpu is None:
        return ""
    shares = (("% busy", gpu.utilisation), ("% of the time memory access", gpu.memory_utilisation))
    parts = [f"{100 * share:.0f} {what}" for what, share in shares if share is not None]
    parts += [f"memory {100 * gpu.memory_share:.0f} %"] if gpu.memory_share is not None else []
    numbers = {"mean": gpu.allocated_mean_bytes, "max": gpu.allocated_max_bytes, "reserved": gpu.reserved_bytes}
    tensors = [f"{binary_words(number)} {what}" for what, number in numbers.items() if number is not None]
    return ", ".join([*parts, *([f"tensors {', '.join(tensors)}"] if tensors else [])])


def binary_words(number: float) -> str:
    """Bytes as people read them."""
    if number < 2**20:
        return f"{number / 2**10:,.0f} KiB"
    return f"{number / 2**30:,.1f} GiB" if number >= 2**30 else f"{number / 2**20:,.0f} MiB"


def restart_words(restarts: Mapping[str, int]) -> str:
    """Restarts by service; empty if there were none."""
    return ", ".join(f"{service} {count}" for service, count in restarts.items() if count)


def clock(seconds: float) -> str:
    """Length of time as HH:MM:SS."""
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
