"""The metrics as Prometheus gets them: over HTTP."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import BadInputError
from common.measurements import measurements
from common.status import Counters, FetcherStatus, Hop, TrainerStatus
from common.status_files import write_status
from services.fetcher.exporter import Exporter

FETCHER = FetcherStatus(
    slots=8, units_ready=3, stalled_s={"no_credit": 2.5}, hops={"slots": Hop(wait_put_s=1.5, occupancy=0.5)}
)
TRAINER = TrainerStatus(
    step=4,
    counters=Counters(events_read=30, events_trained=20, events_outlier=10),
    losses={"c_loss": -1.5},
    quarantined=["https://user:secret@host/file: bad"],
    checkpoint="checkpoints/secret",
)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    exporter = Exporter(tmp_path, 0)
    yield exporter
    exporter.close()


def scrape(exporter: Exporter) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=20) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def samples(text: str) -> dict[str, float]:
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_a_scrape_tells_the_newest_status_of_both_services(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    told = samples(scrape(exporter))
    assert told["icestream_fetcher_units_ready"] == 3.0
    assert told["icestream_stall_no_credit_s_total"] == 2.5
    assert (told["icestream_hop_slots_wait_put_s_total"], told["icestream_hop_slots_occupancy"]) == (1.5, 0.5)
    assert (told["icestream_trainer_events_outlier_total"], told["icestream_train_c_loss"]) == (10.0, -1.5)
    assert 0.0 <= told["icestream_trainer_status_age_s"] < 3600.0

    write_status(tmp_path, "fetcher", FETCHER.model_copy(update={"units_ready": 5}))
    assert samples(scrape(exporter))["icestream_fetcher_units_ready"] == 5.0


def test_every_measurement_is_exported_under_its_name(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    told = samples(scrape(exporter))
    for one in measurements(FETCHER, TRAINER):
        name = "icestream_" + one.name.replace("/", "_") + ("_total" if one.is_counter else "")
        assert told[name] == pytest.approx(one.value)


def test_before_any_status_there_is_nothing_to_tell(exporter: Exporter) -> None:
    assert samples(scrape(exporter)) == {}


def test_no_text_of_the_status_is_exported(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    text = scrape(exporter)
    assert "icestream_trainer_step_total 4.0" in text
    assert "secret" not in text


def test_only_loopback_is_listened_on(exporter: Exporter) -> None:
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=20) as connection:
        assert connection.getpeername()[0] == "127.0.0.1"
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", exporter.port), timeout=20):  # noqa: PT011
        pass


def test_a_port_in_use_is_a_clear_error(tmp_path: Path, exporter: Exporter) -> None:
    expected = rf"fetcher.metrics_port = {exporter.port}: can't listen on 127.0.0.1:{exporter.port} .*in use"
    with pytest.raises(BadInputError, match=expected):
        Exporter(tmp_path, exporter.port)


def test_a_closed_exporter_lets_its_port_go(tmp_path: Path) -> None:
    first = Exporter(tmp_path, 0)
    first.close()
    second = Exporter(tmp_path, first.port)
    assert samples(scrape(second)) == {}
    second.close()
