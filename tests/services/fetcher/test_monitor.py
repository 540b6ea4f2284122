"""Hops, the number of decoders wanted, the metrics as Prometheus gets them, and the monitoring that reads these."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.status import Counters, FetcherStatus, GpuStatus, Hop, RunStatus, TrainerStatus, measurements, write_status
from services.fetcher import monitor
from services.fetcher.dispatcher_state import State


def state(
    stall: str | None = None, *, full: bool = False, staged: float = 0.0, busy: int = 4, filled: int = 0, waits: int = 0
) -> monitor.HopStates:
    """State of the hops with 4 decoders, ``busy`` of them, and 8 slots, half of the ``filled`` ones at the trainer."""
    num = {State.READY: filled // 2, State.DELIVERED: filled // 2}
    dispatcher = SimpleNamespace(
        stall=stall,
        units=SimpleNamespace(slots=8, num=num.__getitem__),
        decoders=SimpleNamespace(num_staying=4, num_busy=busy),
        trainer_waits=waits > 0,
        prefetched=staged,
    )
    ahead = SimpleNamespace(is_full=full, part_ahead=lambda current_block: staged)
    return monitor.hop_states(dispatcher, ahead, 0)  # type: ignore[arg-type]


def after(*script: tuple[float, monitor.HopStates]) -> tuple[dict[str, Hop], float]:
    """The hops after spans of (seconds, what held in them), within the window."""
    hops, now_s = monitor.Hops(), 100.0
    hops.status(now_s)
    for span_s, states in script:
        hops.tick(now_s, states)
        now_s += span_s
    hops.tick(now_s, {})
    return hops.status(now_s)


def test_each_hop_has_its_own_waits_and_the_mean_of_its_occupancy() -> None:
    hops, batches = after(
        (1.0, state("no_free_slot", full=True, staged=1.0, filled=8)),
        (2.0, state("not_staged", busy=1)),
        (1.0, state("no_credit", staged=0.5, filled=2, waits=1)),
    )
    assert {name: (hop.wait_put_s, hop.wait_get_s) for name, hop in hops.items()} == {
        "staged": pytest.approx((1.0, 2.0)),
        "leases": pytest.approx((1.0, 2.0 * 3 / 4)),
        "slots": pytest.approx((1.0, 1.0)),
    }, "the waits of batches are the trainer's to tell"
    assert hops["staged"].occupancy == batches == pytest.approx((1.0 + 0.5) / 4)
    assert hops["leases"].occupancy == pytest.approx((4 + 2 * 1 + 4) / 4 / 4)
    assert hops["slots"].occupancy == pytest.approx((8 + 2) / 4 / 8)
    hops, batches = after((50.0, {}), (1.0, {}))
    assert all(hop == Hop() for hop in hops.values()), "nothing flows"
    assert batches == 0.0


STEP_S = 0.5
Series = Callable[[float, int], tuple[float, float]]
"""(time, decoders) -> (no_credit, idle)."""


def play(scaling: monitor.DecoderScaling, series: Series, seconds: float, *, began_s: float = 0.0) -> list[int]:
    """How many are wanted at each step, in a run that has as many as it wants at once."""
    wanted = []
    for step in range(int(seconds / STEP_S)):
        now_s = began_s + step * STEP_S
        decoders = scaling.wanted
        no_credit, idle = series(now_s, decoders)
        wanted.append(scaling.update(now_s, monitor.Load(decoders, no_credit, idle)))
    return wanted


def demand(decoders_needed: float) -> Series:
    """A steady trainer that keeps so many decoders busy."""

    def series(now_s: float, decoders: int) -> tuple[float, float]:
        short = decoders < decoders_needed
        return (1.0, 0.0) if short else (0.05, 1.0 - decoders_needed / decoders)

    return series


@pytest.mark.parametrize(("needed", "most", "settled"), [(0.2, 8, 1), (2.5, 8, 3), (5.9, 8, 6), (50.0, 8, 8)])
def test_a_steady_demand_is_met_and_then_nothing_changes(needed: float, most: int, settled: int) -> None:
    scaling = monitor.DecoderScaling(most)
    wanted = play(scaling, demand(needed), 300.0)
    assert wanted[-1] == settled
    assert sum(a != b for a, b in pairwise(wanted)) == settled - 1, "one at a time, and never back"
    grown_s = [step * STEP_S for step in range(1, len(wanted)) if wanted[step] > wanted[step - 1]]
    assert not grown_s or grown_s[0] == monitor.GROW_AFTER_S
    assert all(b - a >= monitor.COOL_DOWN_S + monitor.GROW_AFTER_S for a, b in pairwise(grown_s))


def test_idle_decoders_leave_one_by_one_and_later_than_they_came() -> None:
    scaling = monitor.DecoderScaling(8)
    play(scaling, demand(6.0), 200.0)
    assert scaling.wanted == 6
    wanted = play(scaling, demand(1.5), 300.0, began_s=200.0)
    assert wanted[int(monitor.SHRINK_AFTER_S / STEP_S) - 1] == 6
    assert wanted[-1] == 2
    assert set(wanted) == {6, 5, 4, 3, 2}


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_load_settles_without_flapping(seed: int) -> None:
    rng = random.Random(seed)
    steady = demand(3.5)

    def series(now_s: float, decoders: int) -> tuple[float, float]:
        no_credit, idle = (value + rng.gauss(0.0, 0.1) for value in steady(now_s, decoders))
        return min(max(no_credit, 0.0), 1.0), min(max(idle, 0.0), 1.0)

    wanted = play(monitor.DecoderScaling(8), series, 600.0)
    assert set(wanted[120:]) == {4}


def test_while_one_is_on_its_way_no_other_is_asked_for() -> None:
    scaling = monitor.DecoderScaling(8)
    wanted = [scaling.update(step * STEP_S, monitor.Load(1, 1.0, 0.0)) for step in range(400)]
    assert max(wanted) == 2


def test_decoders_that_wait_for_one_late_unit_ask_for_no_other() -> None:
    scaling = monitor.DecoderScaling(8)
    scaling.update(0.0, monitor.Load(2, 0.0, 0.0))
    assert set(play(scaling, lambda now_s, decoders: (1.0, 0.5), 100.0)) == {2}


def test_a_run_without_a_trainer_changes_nothing_and_begins_anew() -> None:
    scaling = monitor.DecoderScaling(8)
    short = monitor.Load(1, 1.0, 0.0)
    for now_s in (0.0, 2.0):
        scaling.update(now_s, short)
    assert scaling.update(100.0, None) == 1
    assert scaling.update(100.5, short) == 1
    assert scaling.update(100.5 + monitor.GROW_AFTER_S, short) == 2


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
def exporter(tmp_path: Path) -> Iterator[monitor.Exporter]:
    exporter = monitor.Exporter(tmp_path, 0)
    yield exporter
    exporter.close()


def samples(exporter: monitor.Exporter) -> dict[str, float]:
    """Values by name and labels, as they are written."""
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=20) as answer:
        assert answer.status == 200
        text = str(answer.read().decode())
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_every_measurement_is_exported_once(tmp_path: Path, exporter: monitor.Exporter) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    told = samples(exporter)
    names = set()
    for one in measurements(FETCHER, TRAINER):
        name, labels = monitor.named(one.name)
        text = "".join(f'{{{label}="{value}"}}' for label, value in labels.items())
        written = f"icestream_{name}{'_total' * one.is_counter}{text}"
        assert told[written] == pytest.approx(one.value), one.name
        names.add(written)
    assert len(names) == len(measurements(FETCHER, TRAINER))
    assert told["icestream_fetcher_units_ready"] == 3.0
    assert told['icestream_stall_seconds_total{reason="no_credit"}'] == 2.5
    assert told['icestream_hop_wait_put_seconds_total{hop="slots"}'] == 1.5
    assert told['icestream_hop_occupancy_ratio{hop="slots"}'] == 0.5
    assert (told["icestream_trainer_events_outlier_total"], told['icestream_loss{loss="c_loss"}']) == (10.0, -1.5)
    assert 0.0 <= told['icestream_status_age_seconds{service="trainer"}'] < 3600.0


def test_states_checkpoint_restarts_disk_gpu_and_token_are_told_where_they_are(
    tmp_path: Path, exporter: monitor.Exporter
) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    write_status(tmp_path, "trainer", TRAINER)
    told = samples(exporter)
    for absent in ("checkpoint_timestamp", "restarts", "gpu", "token"):
        assert not [name for name in told if absent in name]
    assert 0 < told["icestream_disk_free_bytes"] < told["icestream_disk_size_bytes"]

    write_status(tmp_path, "fetcher", FETCHER.model_copy(update={"state": "streaming", "token_expires_s": 2e9}))
    gpu = GpuStatus(utilisation=0.75, memory_share=0.5, reserved_bytes=77)
    busy = {"health": "warning", "state": "training", "gpu": gpu}
    write_status(tmp_path, "trainer", TRAINER.model_copy(update=busy))
    write_status(tmp_path, "run", RunStatus(restarts={"trainer": 2, "fetcher": 0}))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / TRAINER.checkpoint).touch()
    os.utime(tmp_path / TRAINER.checkpoint, (1.5e9, 1.5e9))
    told = samples(exporter)
    assert told["icestream_checkpoint_timestamp_seconds"] == 1.5e9
    assert told['icestream_restarts_total{service="trainer"}'] == 2.0
    assert told["icestream_trainer_gpu_utilisation_ratio"] == 0.75
    assert told["icestream_trainer_gpu_memory_ratio"] == 0.5
    assert told["icestream_trainer_gpu_reserved_bytes"] == 77
    assert "icestream_trainer_copied_bytes_per_second" in told
    assert "icestream_trainer_gpu_memory_utilisation_ratio" not in told, "not measured"
    assert told["icestream_fetcher_token_expiry_timestamp_seconds"] == 2e9
    states = [(name, value) for name, value in told.items() if "_state{" in name or "health{" in name]
    assert sorted(name for name, value in states if value) == [
        'icestream_fetcher_state{state="streaming"}',
        'icestream_trainer_health{state="warning"}',
        'icestream_trainer_state{state="training"}',
    ]
    assert len(states) > 3, "the others are 0"
    assert told['icestream_bottleneck{state="none"}'] == 1.0


def test_before_any_status_only_the_machine_is_told(exporter: monitor.Exporter) -> None:
    told = {name.partition("{")[0] for name in samples(exporter) if not name.startswith("process_")}
    assert told == {"icestream_build_info", "icestream_disk_free_bytes", "icestream_disk_size_bytes"}


def test_only_loopback_is_listened_on(exporter: monitor.Exporter) -> None:
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=20) as connection:
        assert connection.getpeername()[0] == "127.0.0.1"
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", exporter.port), timeout=20):  # noqa: PT011
        pass


# -------------------------------------------------------------- what configs/monitoring provisions, a real Prometheus


MONITORING = Path(__file__).resolve().parents[3] / "configs/monitoring"
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/icestream.json").read_text())
ALERTS = (MONITORING / "alerts.yml").read_text()


def test_every_metric_of_dashboard_and_alerts_is_exported(tmp_path: Path, exporter: monitor.Exporter) -> None:
    """Of a run on a GPU, with a token, a checkpoint and a supervisor."""
    hops = dict.fromkeys(("staged", "leases", "slots"), Hop(occupancy=0.5))
    write_status(tmp_path, "fetcher", FETCHER.model_copy(update={"hops": hops, "token_expires_s": 2e9}))
    gpu = GpuStatus.model_validate(dict.fromkeys(GpuStatus.model_fields, 1))
    trainer = TRAINER.model_copy(update={"gpu": gpu, "checkpoint": "checkpoint.pt"})
    write_status(tmp_path, "trainer", trainer)
    write_status(tmp_path, "run", RunStatus(restarts={"trainer": 1}))
    (tmp_path / "checkpoint.pt").touch()
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked = set(re.findall(r"icestream_\w+", "\n".join([*queries, *re.findall("expr: (.*)", ALERTS)])))
    assert len(asked) > 25
    assert asked <= {name.partition("{")[0] for name in samples(exporter)}


def test_the_dashboard_asks_the_datasource_that_is_provisioned() -> None:
    sources = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    (uid,) = sources | {variable["datasource"]["uid"] for variable in DASHBOARD["templating"]["list"]}
    assert f"uid: {uid}," in (MONITORING / "grafana/datasources/prometheus.yml").read_text()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


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
