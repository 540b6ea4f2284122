"""The environment of a real run's processes, as the kernel tells it."""

from __future__ import annotations

import signal
from pathlib import Path

from runs import ICESTREAM, Processes

SECRETS = {"BEARER_TOKEN": "x", "WANDB_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "OTEL_EXPORTER_OTLP_HEADERS": "a=x"}
WANTED = {"fetcher": {"BEARER_TOKEN", "AWS_SECRET_ACCESS_KEY"}, "decoder": set(), "trainer": set(), "outputs": set()}


def test_the_processes_of_a_run_get_only_the_secrets_that_they_need(
    processes: Processes, command: list[str], tmp_path: Path
) -> None:
    destination = ["--set", f"outputs.destination={tmp_path / 'copies'}"]
    run = processes.start("run", *command, *destination, environment=SECRETS, program=ICESTREAM)

    def all_there() -> dict[str, int] | None:
        found = children(run.pid)
        return found if found.keys() == WANTED.keys() else None

    for service, pid in processes.wait_in(run, all_there, "all services").items():
        names = {line.partition("=")[0] for line in Path(f"/proc/{pid}/environ").read_text().split("\0")}
        assert names & SECRETS.keys() == WANTED[service], service
        assert "PATH" in names
    run.send(signal.SIGINT)
    processes.finish(run)


def children(parent: int) -> dict[str, int]:
    """Process ids by service, once they run it."""
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = {}
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if "icestream" in words[:-1]:
            found[words[words.index("icestream") + 1]] = int(pid)
    return found
