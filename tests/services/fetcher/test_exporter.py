"""The metrics as Prometheus gets them: over HTTP."""

from __future__ import annotations

import os
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import BadInputError
from common.measurements import measurements
from common.status import Counters, FetcherStatus, GpuStatus, Hop, RunStatus, TrainerStatus
from common.status_files import write_status
from services.fetcher.exporter import Exporter
from services.fetcher.metric_families import HEALTH, named

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
    """Values by name and labels, as they are written."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_a_scrape_tells_the_newest_status_of_both_services(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    told = samples(scrape(exporter))
    assert told["icestream_fetcher_units_ready"] == 3.0
    assert told['icestream_stall_seconds_total{reason="no_credit"}'] == 2.5
    assert told['icestream_hop_wait_put_seconds_total{hop="slots"}'] == 1.5
    assert told['icestream_hop_occupancy_ratio{hop="slots"}'] == 0.5
    assert (told["icestream_trainer_events_outlier_total"], told['icestream_loss{loss="c_loss"}']) == (10.0, -1.5)
    assert 0.0 <= told['icestream_status_age_seconds{service="trainer"}'] < 3600.0

    write_status(tmp_path, "fetcher", FETCHER.model_copy(update={"units_ready": 5}))
    assert samples(scrape(exporter))["icestream_fetcher_units_ready"] == 5.0


def test_every_measurement_is_exported_once(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    told = samples(scrape(exporter))
    names = set()
    for one in measurements(FETCHER, TRAINER):
        name, labels = named(one.name)
        text = "".join(f'{{{label}="{value}"}}' for label, value in labels.items())
        written = f"icestream_{name}{'_total' * one.is_counter}{text}"
        assert told[written] == pytest.approx(one.value), one.name
        names.add(written)
    assert len(names) == len(measurements(FETCHER, TRAINER))


def test_states_and_health_are_one_of_those_possible(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER.model_copy(update={"state": "streaming"}))
    write_status(tmp_path, "trainer", TRAINER.model_copy(update={"health": "warning", "state": "training"}))
    told = samples(scrape(exporter))
    assert [told[f'icestream_trainer_health{{state="{state}"}}'] for state in HEALTH] == [0.0, 1.0, 0.0]
    assert (
        told['icestream_trainer_state{state="training"}'] == told['icestream_fetcher_state{state="streaming"}'] == 1.0
    )
    assert told['icestream_trainer_state{state="finished"}'] == 0.0
    assert told['icestream_bottleneck{state="none"}'] == 1.0


def test_checkpoint_restarts_disk_gpu_and_token_are_told_where_they_are(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    told = samples(scrape(exporter))
    for absent in ("checkpoint_timestamp", "restarts", "gpu", "token"):
        assert not [name for name in told if absent in name]
    assert 0 < told["icestream_disk_free_bytes"] < told["icestream_disk_size_bytes"]

    write_status(tmp_path, "fetcher", FETCHER.model_copy(update={"token_expires_s": 2e9}))
    write_status(
        tmp_path,
        "trainer",
        TRAINER.model_copy(
            update={"gpu": GpuStatus(utilisation=0.75, memory_share=0.5, reserved_bytes=77), "flops_per_s": 2e12}
        ),
    )
    write_status(tmp_path, "run", RunStatus(restarts={"trainer": 2, "fetcher": 0}))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / TRAINER.checkpoint).touch()
    os.utime(tmp_path / TRAINER.checkpoint, (1.5e9, 1.5e9))
    told = samples(scrape(exporter))
    assert told["icestream_checkpoint_timestamp_seconds"] == 1.5e9
    assert told['icestream_restarts_total{service="trainer"}'] == 2.0
    assert told["icestream_trainer_gpu_utilisation_ratio"] == 0.75
    assert told["icestream_trainer_gpu_memory_ratio"] == 0.5
    assert told["icestream_trainer_gpu_reserved_bytes"] == 77
    assert told["icestream_trainer_flops_per_second"] == 2e12
    assert "icestream_trainer_copied_bytes_per_second" in told
    assert "icestream_trainer_gpu_memory_utilisation_ratio" not in told, "not measured"
    assert told["icestream_trainer_gpu_memory_ratio"] == 0.5
    assert told["icestream_fetcher_token_expiry_timestamp_seconds"] == 2e9


def test_names_have_base_units_and_each_has_help_and_type(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    lines = [line for line in scrape(exporter).splitlines() if "icestream_" in line]
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    helped = {line.split()[2] for line in lines if line.startswith("# HELP") and len(line.split()) > 4}
    assert kinds.keys() == helped
    for line in lines:
        name = line.split("{")[0].split()[0]
        if not line.startswith("#"):
            assert name.endswith("_total") == (kinds[name] == "counter"), name
            assert not re.search("(_s|_share|_mib|_fraction|_occupancy)(_total)?$", name), name


def test_before_any_status_only_the_machine_is_told(exporter: Exporter) -> None:
    told = {name.partition("{")[0] for name in samples(scrape(exporter)) if not name.startswith("process_")}
    assert told == {"icestream_build_info", "icestream_disk_free_bytes", "icestream_disk_size_bytes"}


def test_no_text_of_the_status_is_exported(tmp_path: Path, exporter: Exporter) -> None:
    write_status(tmp_path, "trainer", TRAINER)
    text = scrape(exporter)
    assert "icestream_trainer_steps_total 4.0" in text
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
    assert "icestream_build_info" in scrape(second)
    second.close()
