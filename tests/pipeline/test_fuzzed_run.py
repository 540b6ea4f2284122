"""Promise 8 with real processes: what a peer sends, in bytes or in claims, neither ends a run nor changes it."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
from collections.abc import Callable, Iterator

import pytest
from fuzzed_messages import fuzzed, good
from runs import Processes, settings
from showers import Undisturbed

from common import messages as m
from common.config import TransportConfig
from common.transport import PeerTransport

pytestmark = pytest.mark.slow

MANY = 10_000
DROPPED = " dropped a malformed message "


@pytest.fixture
def join(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], PeerTransport]]:
    """Join the run as a peer in this process that sends bytes as they are; it leaves at the end."""
    encode = m.encode
    monkeypatch.setattr(m, "encode", lambda message: message if isinstance(message, bytes) else encode(message))
    joined: list[PeerTransport] = []

    def join() -> PeerTransport:
        config = TransportConfig(connect_timeout_s=60)
        joined.append(PeerTransport(processes.run_dir, config, writable=False, stopped=lambda: False))
        return joined[-1]

    yield join
    for peer in joined:
        peer.close()


def is_malformed(frame: bytes) -> bool:
    try:
        m.decode(frame)
    except m.MalformedMessage:
        return True
    return False


def gone(processes: Processes) -> str:
    """Lines of the fetcher's log about peers that are gone, or left."""
    return "\n".join(line for line in processes.log("fetcher").splitlines() if line.endswith((" is gone", " left")))


def test_ten_thousand_fuzzed_messages_to_a_run_change_nothing(
    processes: Processes, command: list[str], undisturbed: Undisturbed, join: Callable[[], PeerTransport]
) -> None:
    # It may become a decoder, and fail; that no unit is skipped for it is not the question here.
    # Nor is it whether it hangs: who is killed for that would be this process.
    calm = settings("fetcher.max_unit_deaths=1000000", "fetcher.stall_timeout_s=1000000")
    run = processes.start_endless(5, [*command, *calm])
    rng, rogue, num_malformed = random.Random(7), join(), 0
    for _ in range(MANY):
        frame = fuzzed(rng)
        num_malformed += is_malformed(frame)
        rogue.send(frame)  # type: ignore[arg-type]
    rogue.close()  # its last word says how many messages there were: it is gone once all were heard
    processes.wait_in(run, lambda: f"decoder {os.getpid()}-" in gone(processes), "the last message")
    step = processes.checkpoint_step()
    processes.wait_in(run, lambda: processes.checkpoint_step() > step + 10, "what is trained after that")
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130, processes.report()
    assert num_malformed > 0.8 * MANY
    assert 0 < processes.log("fetcher").count(DROPPED) < 100, "they fill no log"
    assert processes.summary()["restarts"] == {"fetcher": 0, "decoder": 0, "trainer": 0}
    assert processes.summary()["adds_up"]
    length = min(len(processes.audit()), len(undisturbed.audit))
    assert length > 20
    assert processes.audit()[:length] == undisturbed.audit[:length]


def test_a_trainer_with_false_claims_changes_nothing_for_the_true_one(
    processes: Processes, command: list[str], undisturbed: Undisturbed, join: Callable[[], PeerTransport]
) -> None:
    *inputs_and_settings, _, epochs = command
    fetcher = processes.start("fetcher", *inputs_and_settings, *settings(f"epochs={epochs}"))
    decoder = processes.start("decoder")
    processes.wait_in(fetcher, lambda: processes.fetcher.decoders == 1, "the decoder")
    rng, rogue = random.Random(11), join()
    for _ in range(300):
        rogue.send(claim(rng, rogue.plan_hash))
        rogue.receive(0.01)
    rogue.close()
    processes.wait_in(fetcher, lambda: " is gone" in processes.started[0].output(), "the fetcher's hearing of all that")
    trainer = processes.start("trainer")
    for process in (trainer, fetcher, decoder):
        assert processes.finish(process) == 0, processes.report()
    undisturbed.assert_same(processes)


def claim(rng: random.Random, plan_hash: str) -> m.Message:
    """Of a trainer of this plan: of places that it can't be at, and units that it was not given."""
    message = good(rng, rng.choice((m.Attach, m.Attach, m.Want, m.Release, m.Committed)))
    match message:
        case m.Attach() | m.Committed():
            first, unit = sorted((rng.randrange(60), rng.randrange(80)))
            place = m.Cursor(min(first, rng.randrange(12)), first, unit, rng.randrange(3))
            message = dataclasses.replace(message, cursor=rng.choice((message.cursor, place)))
        case m.Release():
            message = dataclasses.replace(message, k=rng.randrange(60))
    if isinstance(message, m.Attach):  # what its journal says is bad is believed
        of_plan = {"rank": 0, "ranks": 1, "plan_hash": plan_hash, "bad_files": ()}
        message = dataclasses.replace(message, **of_plan, source=rng.choice((m.Source(), message.source)))
    return message
