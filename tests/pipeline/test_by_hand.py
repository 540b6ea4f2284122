"""Services that are started one by one, and decoders that join and leave a run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from runs import ICESTREAM, Processes, kill, settings
from showers import Undisturbed

pytestmark = pytest.mark.slow


def test_decoders_join_a_run_work_and_leave_it_when_asked(
    processes: Processes, command: list[str], undisturbed: Undisturbed
) -> None:
    lonely = settings("local.restart_min_s=300", "local.restart_max_s=300")
    run = processes.start_endless(5, [*command, *lonely, "--decoders", "1"])
    own = processes.the_pid("decoder")
    first = processes.start("decoder")
    processes.wait_in(run, lambda: processes.fetcher.decoders == 2, "the first decoder's joining")

    kill(own)  # from now on the run lives on those who joined
    processes.wait_in(run, lambda: processes.fetcher.decoders == 1, "the death of the run's own decoder")
    decoded = processes.fetcher.events_decoded
    processes.wait_in(run, lambda: processes.fetcher.events_decoded > decoded, "the first decoder's work")

    second = processes.start("decoder")
    processes.wait_in(run, lambda: processes.fetcher.decoders == 2, "the second decoder's joining")
    first.send(signal.SIGTERM)
    assert processes.finish(first) == 0, processes.report()
    assert "Traceback" not in first.output()
    processes.wait_in(run, lambda: processes.fetcher.decoders == 1, "the first decoder's leaving")
    step = processes.checkpoint_step()
    processes.wait_in(run, lambda: processes.checkpoint_step() >= step + 10, "the second decoder's work")
    second.send(signal.SIGINT)
    assert processes.finish(second) == 0, processes.report()
    assert processes.fetcher.decoders_lost == 1  # the killed one

    run.send(signal.SIGINT)
    assert processes.finish(run) == 130
    length = min(len(processes.audit()), len(undisturbed.audit))
    assert length > 20
    assert processes.audit()[:length] == undisturbed.audit[:length]


@pytest.mark.parametrize("sockets", ["abstract", "folder"])
def test_services_started_one_by_one_in_a_long_path_trainer_first_make_the_same_run(
    tmp_path: Path, processes: Processes, command: list[str], undisturbed: Undisturbed, sockets: str
) -> None:
    processes.run_dir = tmp_path / ("long" * 20) / ("longer" * 20) / "run"  # a socket's path has 107 bytes
    how = {"environment": {"ICESTREAM_TRANSPORT__SOCKETS": sockets}, "program": ICESTREAM}
    trainer = processes.start("trainer", **how)
    decoders = [processes.start("decoder", **how) for _ in range(2)]
    for process in (trainer, *decoders):
        processes.wait_in(
            process, lambda process=process: "waiting for a run to be started in" in process.output(), "its waiting"
        )
    *inputs_and_settings, _, epochs = command
    options = [*inputs_and_settings, *settings(f"epochs={epochs}")]
    fetcher = processes.start("fetcher", *options, **how)
    for process in (trainer, fetcher, *decoders):
        assert processes.finish(process) == 0, processes.report()
    undisturbed.assert_same(processes)
    assert processes.summary()["exit_status"] == "finished"
    assert "events read" in trainer.output()
    assert not list((processes.run_dir / "sockets").glob("*"))


def test_a_decoder_of_a_run_that_is_not_there_gives_up_after_its_patience(processes: Processes) -> None:
    exit_code, output = processes.run("decoder", *settings("transport.connect_timeout_s=0.2"))
    assert exit_code == 2
    assert "no run was started here for 0.2 s" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_a_decoder_with_other_settings_than_the_run_is_refused(processes: Processes, command: list[str]) -> None:
    run = processes.start_endless(5, command)
    exit_code, output = processes.run("decoder", *settings("seed=99"))
    assert exit_code == 2
    assert "seed or stream settings are not those of the run" in output.splitlines()[-1]
    run.send(signal.SIGINT)
    assert processes.finish(run) == 130
