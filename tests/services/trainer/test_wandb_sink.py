"""Weights & Biases, offline: what it would send is read back from its file."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_sinks import wait_for_next_second

from common.errors import BadInputError
from services.config.settings import WandbConfig
from services.trainer.sinks import WandbSink, run_name
from workloads.base.training import Histogram

OFFLINE = WandbConfig(mode="offline", project="muons")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2 + "01234567")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "of-the-user"))
    wandb = pytest.importorskip("wandb", reason="the extra icestream[wandb] is not installed")
    return wandb


def records(run_dir: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    paths = sorted((run_dir / "wandb").glob("offline-run-*/run-*.wandb"))
    return [wandb_internal_pb2.Record.FromString(data) for path in paths for data in log_records(path.read_bytes())]


def log_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log format behind a header of 7 bytes: blocks of 32 KiB, records in one or more pieces."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the rest of a block that is too small for a piece's header
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def history(run_dir: Path) -> list[dict[str, Any]]:
    rows = []
    for record in records(run_dir):
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_a_run_is_named_by_its_directory_and_start(tmp_path: Path) -> None:
    name = run_name(tmp_path / "runs" / "baseline-1m-e2e", "2025-10-04T23-10-58")
    assert name == "baseline-1m-e2e-20251004_231058"


@pytest.mark.process
@pytest.mark.usefixtures("wandb")
def test_the_same_names_are_recorded_offline_by_one_run_over_a_restart_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["icestream", "--set", "secret-on-the-command-line"])
    sink = WandbSink(tmp_path, OFFLINE, "2026-11-21T12-00-00", {"seed": 3, "trainer.wgan.critic_steps": 5})
    sink.scalars({"train/w_gap": 1.5, "panel/score": 3.0}, 10)
    sink.histograms({"hist/real/log10_energy": Histogram(np.array([0.0, 1.0, 3.0]), np.array([5, 2]))}, 10)
    sink.images({"panel/distributions": np.full((4, 6, 3), 200, np.uint8)}, 10)
    sink.scalars({"train/w_gap": 1.25}, 20)
    sink.flush()
    sink.close()
    wait_for_next_second()  # wandb names a start's folder by the second
    sink = WandbSink(tmp_path, OFFLINE, "2026-11-21T12-00-00", {"seed": 3})
    sink.scalars({"train/w_gap": 1.0}, 15)
    sink.close()
    rows = history(tmp_path)
    gaps = [(row["step"], row["train/w_gap"]) for row in rows if "train/w_gap" in row]
    assert gaps == [(10, 1.5), (20, 1.25), (15, 1.0)]
    assert rows[0]["panel/score"] == 3.0
    assert [row["hist/real/log10_energy/values"] for row in rows if "hist/real/log10_energy/values" in row] == [[5, 2]]
    assert [row["panel/distributions/width"] for row in rows if "panel/distributions/width" in row] == [6]
    runs = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert {(run.project, run.display_name) for run in runs} == {("muons", "2026-11-21T12-00-00")}
    assert len({run.run_id for run in runs}) == 1
    settings = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert settings["seed"] == 3
    for path in (tmp_path / "wandb").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert os.environ["WANDB_API_KEY"].encode() not in content, path
            assert b"secret-on-the-command-line" not in content, path
    assert (tmp_path / "wandb").stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("wandb")
@pytest.mark.parametrize("part", ["", "wandb", "wandb/settings"])
def test_settings_of_wandb_that_others_can_change_choose_no_server_for_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nbase_url = http://theirs.example\n")
    (tmp_path / part).chmod(0o777)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=r"wandb.* settings.*\(mode 0777.*can be changed by every user"):
        WandbSink(tmp_path / "run", OFFLINE, "name", {})


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not there
    with pytest.raises(BadInputError, match=r"needs: pip install -c constraints\.txt '\.\[wandb\]'.*mode = off"):
        WandbSink(tmp_path, OFFLINE, "name", {})


def test_who_is_not_logged_in_is_told_so(tmp_path: Path, wandb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**arguments: Any) -> None:
        assert arguments["mode"] == "online"
        raise wandb.errors.UsageError("api_key not configured\n(no-tty). Bearer abcdefgh")

    monkeypatch.setattr(wandb, "init", refused)
    with pytest.raises(BadInputError, match=r"api_key not configured \(no-tty\)\. Bearer …; log in with `wandb login`"):
        WandbSink(tmp_path, WandbConfig(mode="online"), "name", {})


@pytest.mark.process
def test_a_server_that_is_away_ends_no_run_but_has_it_recorded_offline(
    tmp_path: Path, wandb: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    init = wandb.init

    def away(**arguments: Any) -> Any:
        if arguments["mode"] == "online":
            raise wandb.errors.CommError("Run initialization has timed out after 90.0 sec.")
        return init(**arguments)

    monkeypatch.setattr(wandb, "init", away)
    sink = WandbSink(tmp_path, WandbConfig(mode="online"), "name", {})
    sink.scalars({"a": 1.0}, 1)
    sink.close()
    assert "wandb can't be reached" in caplog.text
    assert history(tmp_path)[0]["a"] == 1.0
