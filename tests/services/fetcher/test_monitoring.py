"""The monitoring that configs/monitoring provisions, against the exporter and a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.status import Counters, FetcherStatus, GpuStatus, Hop, RunStatus, TrainerStatus, write_status
from services.fetcher.monitor import Exporter

MONITORING = Path(__file__).resolve().parents[3] / "configs/monitoring"
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/icestream.json").read_text())
ALERTS = (MONITORING / "alerts.yml").read_text()
PATIENCE_S = 60.0

HOP = Hop(occupancy=0.5)
FETCHER = FetcherStatus(state="streaming", hops=dict.fromkeys(("staged", "leases", "slots"), HOP), token_expires_s=2e9)
TRAINER = TrainerStatus(
    state="training",
    step=4,
    counters=Counters(events_read=30, events_trained=30),
    losses={"c_loss": -1.5},
    checkpoint="checkpoint.pt",
    flops_per_s=1e12,
    gpu=GpuStatus(
        utilisation=0.5,
        memory_utilisation=0.5,
        memory_share=0.25,
        allocated_mean_bytes=1,
        allocated_max_bytes=1,
        reserved_bytes=1,
    ),
)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    """Exporter of a run on a GPU, with a token, a checkpoint and a supervisor: every metric is there."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_status(run_dir, "fetcher", FETCHER)
    write_status(run_dir, "trainer", TRAINER)
    write_status(run_dir, "run", RunStatus(restarts={"trainer": 1}))
    (run_dir / TRAINER.checkpoint).touch()
    exporter = Exporter(run_dir, 0)
    yield exporter
    exporter.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def queries() -> list[str]:
    """Expressions of all panels of the dashboard."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def exported(exporter: Exporter) -> set[str]:
    text = get(f"http://127.0.0.1:{exporter.port}/metrics")
    return {re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def test_every_metric_of_dashboard_and_alerts_is_exported(exporter: Exporter) -> None:
    asked = set(re.findall(r"icestream_\w+", "\n".join([*queries(), *re.findall("expr: (.*)", ALERTS)])))
    assert len(asked) > 25
    assert asked <= exported(exporter)


def test_the_dashboard_asks_the_datasource_that_is_provisioned() -> None:
    sources = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    (uid,) = sources | {variable["datasource"]["uid"] for variable in DASHBOARD["templating"]["list"]}
    assert f"uid: {uid}," in (MONITORING / "grafana/datasources/prometheus.yml").read_text()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


# ------------------------------------------------------------------ with a real Prometheus


def program(name: str) -> str:
    """Path of a program of Debian's package `prometheus`; the test is skipped where it isn't, and fails in CI."""
    found = shutil.which(name)
    if found is None:
        assert os.environ.get("REQUIRE_PROMETHEUS") != "1", "REQUIRE_PROMETHEUS=1, and prometheus is not installed"
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found


GOOD = {
    'icestream_status_age_seconds{service="trainer"}': "0x120",
    'icestream_fetcher_state{state="finished"}': "0x120",
    "icestream_trainer_steps_total": "0+9x120",
    'icestream_trainer_state{state="training"}': "1x120",
    'icestream_trainer_health{state="critical"}': "0x120",
    'icestream_restarts_total{service="trainer"}': "0x120",
    "icestream_checkpoint_timestamp_seconds": "7000x120",
    "icestream_disk_free_bytes": "50x120",
    "icestream_disk_size_bytes": "100x120",
    "icestream_fetcher_token_expiry_timestamp_seconds": "99999x120",
}
"""Series of a run that is well, a minute each, up to the time of the test: 7,200 s."""
BAD = {
    "IcestreamSilent": ('icestream_status_age_seconds{service="trainer"}', "0+60x120"),
    "IcestreamNoProgress": ("icestream_trainer_steps_total", "9x120"),
    "IcestreamUnhealthy": ('icestream_trainer_health{state="critical"}', "1x120"),
    "IcestreamRestarts": ('icestream_restarts_total{service="trainer"}', "0+1x120"),
    "IcestreamCheckpointOld": ("icestream_checkpoint_timestamp_seconds", "60x120"),
    "IcestreamDiskFull": ("icestream_disk_free_bytes", "4x120"),
    "IcestreamTokenExpires": ("icestream_fetcher_token_expiry_timestamp_seconds", "9000x120"),
}


def of_a_run(series: str) -> str:
    """Series with the label of its run."""
    name, _, labels = series.partition("{")
    return f'{name}{{instance="a",{labels or "}"}'


@pytest.mark.process
@pytest.mark.parametrize("alert", [None, *BAD])
def test_each_alert_fires_for_its_own_fault_alone(tmp_path: Path, alert: str | None) -> None:
    assert set(BAD) == set(re.findall(r"alert: (\w+)", ALERTS))
    (tmp_path / "alerts.yml").write_text(ALERTS)
    series = GOOD | ({} if alert is None else dict([BAD[alert]]))
    expected = "count by (alertname) (ALERTS{alertstate='firing'})"
    test = {
        "interval": "1m",
        "input_series": [{"series": of_a_run(name), "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expected,
                "eval_time": "2h",
                "exp_samples": [] if alert is None else [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
            }
        ],
    }
    told = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(told))  # JSON is YAML
    done = subprocess.run(
        [program("promtool"), "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
