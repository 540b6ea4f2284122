"""Prometheus' port of a real fetcher."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import Processes, settings
from showers import Showers


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
    except urllib.error.URLError:
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
