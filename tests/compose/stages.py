"""Stages of the test: each brings up a project of its own, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.federation.demo import PROTECTED, fill, write_token
from tests.federation.federation import Federation

from .project import ComposeProject, ask

UID = 1000
_STREAM = """
epochs = 1
[stream]
batch_events = 128
[trainer]
audit = true
log_every = 10
checkpoint_every = 20
"""


@contextmanager
def _up(project: ComposeProject) -> Iterator[None]:
    """Ended with its volumes, whatever happens; nothing may be left."""
    try:
        yield
    finally:
        project.down()
    assert project.left() == []


def old_names_and_wrong_paths(checkout: Path, folder: Path) -> str:
    """An old variable, or data that isn't there, is an error and doesn't start a run with other data."""
    empty = folder / "empty"
    empty.mkdir(parents=True)
    for name, expected in (("DEPLOY_DATA", "are now DATA, INPUT, CONFIG and RUN"), ("DATA", "no file")):
        project = ComposeProject(checkout, f"icestream-wrong-{name.lower()}", {name: str(empty)})
        with _up(project):
            project.compose("up", "--detach", fails=True)
            told = project.compose("logs", "--no-color", "demo")
            assert expected in told, told
            assert not project.containers("fetcher")
    return "two clear errors"


def fresh_clone(checkout: Path, folder: Path) -> str:
    """`up` with nothing before it trains on demo data that it writes."""
    assert not (checkout / "demo").exists()
    project = ComposeProject(checkout, "icestream-fresh")
    with _up(project):
        began_s = time.monotonic()
        project.compose("up", "--detach")
        project.wait_for(lambda: project.status("trainer").get("step", 0) >= 3, "the third step")
        took_s = time.monotonic() - began_s
        fetcher = project.wait_for(lambda: _with_decoders(project, 2), "both decoders")
        assert fetcher["files_total"] == 20, fetcher
        assert not (checkout / "demo").exists(), "the checkout is left as it was"
        told = ask("docker", "exec", project.containers("fetcher")[0], "icestream", "status", "/run-dir", "--once")
        assert "state       running" in told, told
    return f"third step {took_s:.1f} s after up"


def decoders_come_and_go(checkout: Path, folder: Path) -> str:
    """Decoders 1 → 3 → 1, a trainer that is killed; the stream is that of a local run, and `up` ends by itself."""
    data, config, run = folder / "data", folder / "config.toml", folder / "run"
    run.mkdir(parents=True, mode=0o700)
    os.chown(run, UID, UID)
    config.write_text(_STREAM)
    _icestream("simulate", str(data), "--events", "150000", "--files", "6", "--seed", "3")
    variables = {"DATA": str(data), "CONFIG": str(config), "RUN": str(run), "DECODERS": "1"}
    project = ComposeProject(checkout, "icestream-decoders", variables)
    with _up(project):
        project.compose("up", "--detach")
        _reach(project, decoders=1, step=20)
        _scale(project, decoders=3)
        _reach(project, decoders=3, step=40)
        before = project.status("trainer")["step"]
        _signal_all_in(project, "trainer", "KILL")
        project.wait_for(lambda: project.state("trainer")["RestartCount"] == 1, "the trainer's restart")
        _scale(project, decoders=1)
        project.wait_for(lambda: not project.containers("trainer"), "the end of the training")
        project.wait_for(lambda: not project.containers("decoder") + project.containers("fetcher"), "everybody's end")
        assert [project.state(service)["State"]["ExitCode"] for service in ("trainer", "fetcher", "decoder")] == [0] * 3
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["exit_status"], summary["events_read"], summary["adds_up"]) == ("finished", 150_000, True)
        lines = _equal_to_a_local_run(run / "audit.jsonl", str(data), config, folder / "local")
    return f"killed at step {before}; {lines} audit lines are a local run's"


def federation_input(checkout: Path, folder: Path) -> str:
    """Ranges from a federation with a token, as in docs/how-to/docker.md; attached, `up` ends by itself with 0."""
    folder.mkdir()
    config = folder / "config.toml"
    config.write_text(_STREAM + '[fetcher]\nranges = "0:1000:1000"\n')
    with Federation(folder / "federation", caches=2) as federation:
        fill(federation, events=12_000, files=4)
        token = write_token(federation)
        os.chown(token, UID, UID)
        override = folder / "token.yml"
        override.write_text(
            "services:\n  fetcher:\n    network_mode: host\n"
            "    environment: {BEARER_TOKEN_FILE: /token, SSL_CERT_FILE: /bundle.pem}\n"
            f'    volumes: ["{token}:/token:ro", "{federation.certs.bundle_pem}:/bundle.pem:ro"]\n'
        )
        url = federation.url(PROTECTED) + "/{range}/*.parquet"
        variables = {"INPUT": url, "CONFIG": str(config)}
        project = ComposeProject(checkout, "icestream-federation", variables, files=[override])
        with _up(project):
            project.compose("up")
            audit = folder / "audit.jsonl"
            (container,) = project.containers("trainer", all_states=True)
            ask("docker", "cp", f"{container}:/run-dir/audit.jsonl", str(audit))
        os.chown(token, os.getuid(), -1)
        environment = federation.environment() | {"BEARER_TOKEN_FILE": str(token)}
        lines = _equal_to_a_local_run(audit, url, config, folder / "local", environment)
    return f"{lines} audit lines are a local run's"


def _reach(project: ComposeProject, *, decoders: int, step: int) -> None:
    """Wait until so many decoders are in the run, and the trainer is behind the step."""
    project.wait_for(lambda: _with_decoders(project, decoders), f"{decoders} decoders")
    project.wait_for(lambda: project.status("trainer").get("step", 0) > step, f"step {step + 1}")


def _with_decoders(project: ComposeProject, decoders: int) -> dict[str, Any]:
    """Status of the fetcher while so many decoders are in the run; empty otherwise."""
    status = project.status("fetcher")
    return status if status.get("decoders") == decoders else {}


def _scale(project: ComposeProject, *, decoders: int) -> None:
    """Change the number of decoders while the trainer is frozen: else the run may end before they come or go."""
    project.wait_for(lambda: _signal_all_in(project, "trainer", "STOP"), "the trainer")
    project.compose("up", "--detach", "--no-recreate", "--scale", f"decoder={decoders}")
    project.wait_for(lambda: _with_decoders(project, decoders), f"{decoders} decoders")
    _signal_all_in(project, "trainer", "CONT")


def _signal_all_in(project: ComposeProject, service: str, name: str) -> bool:
    """Signal to all but the container's init, which ends with them: `docker kill` would count as a wish not to restart.

    False if there is no other process yet.
    """
    (container,) = project.containers(service)
    command = ["docker", "exec", container, "sh", "-c", f"kill -{name} -1"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _equal_to_a_local_run(
    audit: Path, source: str, config: Path, run_dir: Path, environment: Mapping[str, str] = os.environ
) -> int:
    """Number of lines of an audit, which have to be those of `icestream run` on this machine."""
    options = ("-i", source, "-c", str(config), "--model", "none", "--run-dir", str(run_dir))
    _icestream("run", *options, environment=environment)
    found, expected = audit.read_text().splitlines(), (run_dir / "audit.jsonl").read_text().splitlines()
    assert found == expected, f"{audit} and {run_dir} differ: {len(found)} and {len(expected)} lines"
    assert len(found) > 10
    return len(found)


def _icestream(*arguments: str, environment: Mapping[str, str] = os.environ) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "icestream", *arguments], env=dict(environment), capture_output=True, text=True
    )
    assert done.returncode == 0, f"icestream {arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
