"""Prometheus exporter of a run's measurements: http://127.0.0.1:PORT/metrics, from the newest status files.

Names are those of common/measurements.py with `icestream_` before them and `_` for `/`; counters end in `_total`, as
Prometheus requires.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.errors import BadInputError
from common.measurements import Measurement, measurements
from common.status import FetcherStatus, TrainerStatus
from common.status_files import STATUS_FOLDER, read_status

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"


def metric(measurement: Measurement) -> Metric:
    """Prometheus metric of a measurement."""
    family = CounterMetricFamily if measurement.is_counter else GaugeMetricFamily
    return family("icestream_" + measurement.name.replace("/", "_"), measurement.meaning, value=measurement.value)


class StatusCollector(Collector):
    """Collector that reads the status files at each scrape."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def collect(self) -> Iterator[Metric]:
        """All measurements, and the age of each service's status."""
        fetcher = read_status(self._run_dir, "fetcher", FetcherStatus)
        trainer = read_status(self._run_dir, "trainer", TrainerStatus)
        for name, status in (("fetcher", fetcher), ("trainer", trainer)):
            if status is not None:
                changed_s = (self._run_dir / STATUS_FOLDER / f"{name}.json").stat().st_mtime
                meaning = f"Time since the newest status of the {name}; it grows when the {name} is dead."
                yield metric(Measurement(f"{name}/status_age_s", max(0.0, time.time() - changed_s), meaning))
        for measurement in measurements(fetcher, trainer):
            yield metric(measurement)


class Exporter:
    """HTTP server of one run's status on loopback, until closed; port 0 takes any that is free.

    Raises BadInputError if the port is not available.
    """

    def __init__(self, run_dir: Path, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(StatusCollector(run_dir))
        try:
            self._server, self._thread = start_http_server(port, _LOOPBACK, registry)
        except OSError as error:
            raise BadInputError(
                f"fetcher.metrics_port = {port}: can't listen on {_LOOPBACK}:{port} ({error.strerror}); choose "
                "another port, or 0 for none"
            ) from None
        self.port = self._server.server_port
        logger.info("Prometheus metrics on http://%s:%d/metrics", _LOOPBACK, self.port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
