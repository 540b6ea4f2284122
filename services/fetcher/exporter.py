"""Prometheus exporter of a run: http://127.0.0.1:PORT/metrics, from the newest status files.

metric_families.py has the names; numbers that no status file has are read here, at each scrape.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from common.errors import BadInputError
from common.measurements import measurements
from common.status import RunStatus, TrainerStatus
from common.status_files import STATUS_FOLDER, read_fetchers, read_status
from services.config.fetcher import FetcherConfig
from services.fetcher.metric_families import PREFIX, gauge, measured_families, state_families

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


class StatusCollector(Collector):
    """Collector that reads the status files at each scrape."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def collect(self) -> Iterator[Metric]:
        """All metrics of the run; of a service without a status, none."""
        fetcher = read_fetchers(self._run_dir)
        trainer = read_status(self._run_dir, "trainer", TrainerStatus)
        yield from measured_families(measurements(fetcher, trainer))
        yield from state_families(fetcher, trainer)
        yield from self._ages(trainer)
        yield from self._restarts()
        yield from self._disk()
        yield gauge("build_info", "Version of icestream; the value is 1.", 1.0, version=version("icestream"))

    def _ages(self, trainer: TrainerStatus | None) -> Iterator[Metric]:
        age = gauge("status_age_seconds", "Time since the newest status of a service; it grows when that is dead.")
        for service in ("fetcher", "trainer"):
            with contextlib.suppress(FileNotFoundError):
                changed_s = (self._run_dir / STATUS_FOLDER / f"{service}.json").stat().st_mtime
                age.add_sample(age.name, {"service": service}, max(0.0, time.time() - changed_s))
        yield age
        if trainer is not None and trainer.checkpoint:
            with contextlib.suppress(FileNotFoundError):  # replaced by a newer one a moment ago
                written_s = (self._run_dir / trainer.checkpoint).stat().st_mtime
                yield gauge("checkpoint_timestamp_seconds", "Time of the newest checkpoint, since 1970.", written_s)

    def _restarts(self) -> Iterator[Metric]:
        """Restarts by the supervisor; none where something else starts the services."""
        run = read_status(self._run_dir, "run", RunStatus)
        if run is not None:
            family = CounterMetricFamily(PREFIX + "restarts", "Restarts in this session of the run, by service.")
            for service, count in run.restarts.items():
                family.add_sample(family.name + "_total", {"service": service}, count)
            yield family

    def _disk(self) -> Iterator[Metric]:
        usage = shutil.disk_usage(self._run_dir)
        yield gauge("disk_free_bytes", "Free space of the run directory's file system.", usage.free)
        yield gauge("disk_size_bytes", "Size of the run directory's file system.", usage.total)


class Exporter:
    """HTTP server of one run's metrics on ``host``, until closed; port 0 takes any that is free.

    Raises BadInputError if the address is not available.
    """

    def __init__(self, run_dir: Path, port: int, host: str = LOOPBACK) -> None:
        registry = CollectorRegistry()
        registry.register(StatusCollector(run_dir))
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise BadInputError(
                f"fetcher.metrics_port = {port}: can't listen on {host}:{port} ({error.strerror}); choose "
                "another port, or 0 for none"
            ) from None
        self.port = self._server.server_port
        logger.info("Prometheus metrics on http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def open_exporter(run_dir: Path, config: FetcherConfig) -> Exporter | None:
    """Exporter of a run; None without a port."""
    return Exporter(run_dir, config.metrics_port, config.metrics_host) if config.metrics_port else None
