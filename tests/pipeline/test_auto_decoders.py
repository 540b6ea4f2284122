"""`--decoders auto` and `Retire`, with real processes."""

from __future__ import annotations

import signal

import pytest
from runs import Processes, kill, settings
from showers import Undisturbed

from common import messages as m
from common.arena import Arena
from common.plan_hash import plan_hash
from common.transport import Event, Lost, Received, ServerTransport
from services.config.root import Config, store_config


def heard(transport: ServerTransport, events: list[Event], wanted: type[object]) -> Event | None:
    """The first event, or message, of this kind of all that ever came; ``events`` keeps them."""
    events += transport.poll(0.1)
    for event in events:
        if isinstance(event, wanted) or (isinstance(event, Received) and isinstance(event.message, wanted)):
            return event
    return None


def test_a_decoder_that_is_told_to_retire_says_bye_and_ends_well(processes: Processes) -> None:
    config = Config()
    processes.run_dir.mkdir()
    store_config(processes.run_dir, config)
    arena = Arena.create(1, 4096)
    plan = plan_hash(config.stored_workload(), config.stream, config.seed)
    transport = ServerTransport(processes.run_dir, config.transport, arena, plan)
    events: list[Event] = []
    try:
        decoder = processes.start("decoder")
        hello = processes.wait_for(lambda: heard(transport, events, m.Hello), "Hello")
        transport.send(hello.peer, m.Retire())
        processes.wait_for(lambda: heard(transport, events, m.Bye), "Bye")
        processes.wait_for(lambda: heard(transport, events, Lost), "the end of its lifeline")
        assert processes.finish(decoder) == 0, decoder.output()
        assert "left the run after 0 units" in decoder.output()
    finally:
        transport.close()
        arena.close()


@pytest.mark.slow
def test_auto_adds_a_decoder_when_units_wait_for_one_and_the_stream_stays_the_same(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    auto = [*command, *settings("local.max_decoders=2"), "--decoders", "auto"]
    run = processes.start("run", *auto, environment=processes.brake())
    processes.wait_in(run, lambda: processes.fetcher.decoders == 1, "the first decoder's joining")
    only = processes.the_pid("decoder")
    kill(only, signal.SIGSTOP)
    processes.release()  # however fast the trainer is, it waits for this one now
    processes.wait_in(run, lambda: processes.fetcher.decoders_wanted == 2, "the wish for a second decoder")
    processes.wait_in(run, lambda: processes.fetcher.decoders == 2, "the second decoder's joining")
    kill(only, signal.SIGCONT)
    assert processes.finish(run) == 0, processes.report()
    assert processes.summary()["restarts"] == {"fetcher": 0, "decoder": 0, "trainer": 0}
    assert processes.fetcher.decoders_lost == 0
    undisturbed.assert_same(processes)


@pytest.mark.slow
def test_auto_lets_an_idle_decoder_go_and_the_run_goes_on_without_it(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    run = processes.start_endless(5, [*command, "--decoders", "auto"])
    guest = processes.start("decoder")  # one that nobody needs: a step takes longer than its data
    processes.wait_in(run, lambda: processes.fetcher.decoders == 2, "the second decoder's joining")
    processes.wait_in(run, lambda: processes.log("fetcher").count("is asked to leave") == 1, "the retirement")
    processes.wait_in(run, lambda: processes.fetcher.decoders == 1, "the leaving")
    assert processes.fetcher.decoders_wanted == 1
    step = processes.checkpoint_step()
    processes.wait_in(run, lambda: processes.checkpoint_step() >= step + 10, "steps without it")
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130
    if guest.ended():
        assert processes.finish(guest) == 0
        assert "left the run" in guest.output()
    assert processes.fetcher.decoders_lost == 0
    length = min(len(processes.audit()), len(undisturbed.audit))
    assert processes.audit()[:length] == undisturbed.audit[:length]
