"""Whole runs as in the README: what they leave, and what status, Prometheus and the kernel tell of them."""

from __future__ import annotations

import json
import math
import signal
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from click.testing import CliRunner
from decoded_files import SEED, decoded, planned_in_order
from proc import command_line, parent, read
from proc import processes as every_process
from runs import COUNTING, ICESTREAM, SMALL_STREAM, Processes, settings
from showers import EPOCHS, Showers, Undisturbed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.plan import Blocks, is_held_out
from icestream.cli import VERBS, cli
from icestream.commands.status import status
from services.config.root import Config, load_config
from services.trainer.audit import audit_line
from services.trainer.sinks import run_folder
from services.trainer.validation import StoredBatch, ValidationBlock, made_for


def status_of(processes: Processes) -> dict[str, Any]:
    """What `icestream status --json` shows."""
    result = CliRunner().invoke(status, [str(processes.run_dir), "--json"])
    shown: dict[str, Any] = json.loads(result.output) if result.exit_code == 0 else {}
    return shown


@pytest.mark.slow
def test_a_run_ends_with_a_checkpoint_scalars_and_a_summary_and_its_profile_changes_nothing(
    processes: Processes, showers: Showers, command: list[str], undisturbed: Undisturbed
) -> None:
    summary = processes.train(*command, "--profile-steps", "3")

    undisturbed.assert_same(processes)
    summary.assert_read(EPOCHS * showers.events)
    assert summary["exit_status"] == "finished"
    assert summary["checkpoint"] == f"checkpoints/step-{summary['steps']:09d}.pt"
    assert processes.checkpoint()["step"] == summary["steps"] >= 10
    shown = status_of(processes)
    assert (shown["state"], shown["exit_code"], shown["step"]) == ("finished", 0, summary["steps"])
    (folder,) = (processes.run_dir / "tensorboard").iterdir()
    scalars = EventAccumulator(str(folder)).Reload()
    for name in ("c_loss", "g_loss", "m_loss", "w_gap", "w_gap_ma_500"):
        points = scalars.Scalars(f"train/{name}")
        assert [point.step for point in points] == [1, *range(10, summary["steps"] + 1, 10)]
        assert all(math.isfinite(point.value) for point in points)

    names = [path.name for path in (processes.run_dir / "profile").iterdir()]
    assert sorted(names) == ["steps-00000011-00000013.trace.json.gz", "steps-00000011-00000013.txt"]


SECRETS = {"BEARER_TOKEN": "x", "WANDB_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "OTEL_EXPORTER_OTLP_HEADERS": "a=x"}
WANTED = {"fetcher": {"BEARER_TOKEN", "AWS_SECRET_ACCESS_KEY"}, "decoder": set(), "trainer": set(), "outputs": set()}


@pytest.mark.slow
def test_processes_get_only_the_secrets_that_they_need_and_status_follows_them_until_they_are_killed(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    def reached() -> dict[str, Any] | None:
        now = status_of(processes)
        return now if now.get("checkpoint") and now["state"] == "running" and len(now["processes"]) == 5 else None

    options = [*settings(*COUNTING, f"outputs.destination={tmp_path / 'copies'}"), "--epochs", "0", "--decoders", "2"]
    run = processes.start("run", *showers.input, *options, environment=SECRETS, program=ICESTREAM)
    running = processes.wait_in(run, reached, "a running run with a checkpoint")
    assert running["step"] > 0
    assert running["bottleneck"]
    assert {one["name"] for one in running["processes"]} == {"run", "fetcher", "decoder-0", "decoder-1", "trainer"}
    services = children(run.pid)
    assert services.keys() == WANTED.keys()
    for service, pid in services.items():
        variables = {line.partition("=")[0] for line in read(pid, "environ").split("\0")}
        assert variables & SECRETS.keys() == WANTED[service], service
        assert "PATH" in variables
    processes.kill_all()
    processes.assert_nothing_is_left()
    killed = status_of(processes)
    assert killed["state"] == "killed"
    assert killed["step"] >= running["step"]
    assert killed["processes"] == []
    assert killed["exit_code"] is None


def children(run: int) -> dict[str, int]:
    """Process ids by service, once they run it."""
    words = {pid: command_line(pid) for pid in every_process() if parent(pid) == run}
    return {told[told.index("icestream") + 1]: pid for pid, told in words.items() if "icestream" in told[:-1]}


# ------------------------------------------------------------------ Prometheus


@pytest.fixture
def port() -> Iterator[int]:
    """A free port that the kernel gives to nobody else who asks for a free one."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so may the fetcher's: it can bind the port, too
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])


def scrape(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_a_fetcher_tells_prometheus_its_status_and_refuses_a_port_that_is_taken(
    processes: Processes, showers: Showers, tmp_path: Path, port: int
) -> None:
    fetcher = processes.start("fetcher", *showers.input, *settings(f"metrics_port={port}", "stream.slots=5"))
    processes.wait_in(fetcher, lambda: "icestream_fetcher_slots 5.0" in scrape(port), "its status over HTTP")
    assert 'icestream_stall_seconds_total{reason="no_credit"} 0.0' in scrape(port)

    other = Processes(tmp_path / "other", tmp_path / "logs")
    other.logs.mkdir()
    exit_code, output = other.run("fetcher", *showers.input, *settings(f"metrics_port={port}"))
    assert exit_code == 2
    assert f"fetcher.metrics_port = {port}: can't listen on 127.0.0.1:{port}" in output.splitlines()[-1]
    assert "Traceback" not in output

    fetcher.send(signal.SIGTERM)
    assert processes.finish(fetcher) == 0, fetcher.output()
    assert scrape(port) == ""


# ------------------------------------------------------------------ events that are held out


CPU = torch.device("cpu")
SHARE = 0.25
Ids = npt.NDArray[np.uint64]


def ids_of(events: Mapping[str, Any]) -> Ids:
    return np.asarray(events["primary_id"])


def block_of(processes: Processes, config: Config) -> StoredBatch:
    settings_of_block = made_for(config.trainer.validation, config.stream.held_out)
    batch = ValidationBlock(processes.run_dir, config.stored_workload(), settings_of_block, CPU).batch
    assert batch is not None
    return batch


@pytest.mark.slow
def test_no_held_out_event_is_trained_on_and_the_block_has_no_other(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    validation = ("trainer.validation.events=300", "trainer.validation.every=10")
    stream = (f"stream.held_out={SHARE}", "stream.block_files=99", f"seed={SEED}")
    summary = processes.train(*showers.input, "--epochs", "1", *settings(*SMALL_STREAM, *validation, *stream))
    summary.assert_read(showers.events)
    major, minor = (
        np.concatenate([table[f"primary_{name}_id"].to_numpy() for table in showers.tables]).astype(np.uint64)
        for name in ("major", "minor")
    )
    every = np.stack([major, minor], 1)
    assert summary.events["held_out"] == is_held_out(every, SHARE).sum() > 0

    config = load_config(processes.run_dir, environment={})
    schema, paths = config.stored_workload(), sorted(showers.folder.glob("*.parquet"))
    order = Blocks(len(paths), config.stream, SEED, epochs=1).files(0)
    units = decoded(planned_in_order(paths, order, schema, config.stream), schema, config.stream, tmp_path)
    lines = [
        audit_line(one.arrays, 0, 0, one.unit.k, index)
        for one in units
        for index in range(len(one.arrays.microbatch_bounds) - 1)
    ]
    assert processes.audit() == lines, "these are the microbatches that were trained"
    trained = np.concatenate([ids_of(one.arrays.event_columns) for one in units])
    assert len(trained) == summary.events["trained"]
    assert not is_held_out(trained, SHARE).any()

    block = block_of(processes, config)
    validated = np.concatenate([ids_of(part.event_columns) for part in block.microbatches])
    assert len(validated) == block.num_events == 300
    assert is_held_out(validated, SHARE).all()
    assert not {tuple(one) for one in validated.tolist()} & {tuple(one) for one in trained.tolist()}
    told = EventAccumulator(str(run_folder(processes.run_dir))).Reload()
    assert told.Scalars("panel/score")


# ------------------------------------------------------------------ help


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_command_has_an_example_of_it(verb: str) -> None:
    _, example, text = CliRunner().invoke(cli, [verb, "--help"], catch_exceptions=False).output.partition("Example")
    assert example
    assert f"icestream {verb}" in text
