"""What is written for TensorBoard is what TensorBoard reads."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from common.locks import OutdatedAttemptError, begin_attempt
from services.config.root import Config
from services.trainer.sinks import TensorBoardSink, hyperparameters, run_folder, started
from workloads.base.training import Histogram

NOON = datetime(2026, 11, 21, 12, 0, 5, tzinfo=UTC)


def wait_for_next_second() -> None:
    """TensorBoard reads the files of a folder in the order of their names: second, process, number as a text."""
    now_s = int(time.time())
    while int(time.time()) == now_s:
        time.sleep(0.01)


def read(run_dir: Path) -> EventAccumulator:
    return EventAccumulator(str(run_folder(run_dir))).Reload()


def points(run_dir: Path, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in read(run_dir).Scalars(name)]


def test_a_run_is_named_by_its_directory_and_the_time_of_its_start_and_keeps_its_name(tmp_path: Path) -> None:
    run_dir = tmp_path / "wide net"
    folder = run_folder(run_dir, NOON)
    assert folder == run_dir / "tensorboard" / "wide_net-2026-11-21T12-00-05"
    assert started(folder) == "2026-11-21T12-00-05"
    run_dir.rename(tmp_path / "deep")
    assert run_folder(tmp_path / "deep") == tmp_path / "deep" / "tensorboard" / folder.name


def test_scalars_histograms_and_images_come_back(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, 0)
    sink.scalars({"train/w_gap": 1.5, "panel/score": 3.0}, 7)
    sink.scalars({"train/w_gap": float("nan")}, 8)
    sink.histograms({"hist/real/log10_energy": Histogram(np.array([0.0, 1.0, 3.0]), np.array([5, 2]))}, 7)
    sink.images({"panel/picture": np.full((4, 6, 3), 200, np.uint8)}, 7)
    sink.close()
    events = read(tmp_path)
    assert points(tmp_path, "panel/score") == [(7, 3.0)]
    assert [point.step for point in events.Scalars("train/w_gap")] == [7, 8]
    (histogram,) = events.Histograms("hist/real/log10_energy")
    value = histogram.histogram_value
    assert (list(value.bucket), list(value.bucket_limit)) == ([5, 2], [1, 3])
    assert (value.min, value.max, value.num, value.sum) == (0, 3, 7, 5 * 0.5 + 2 * 2.0)
    (image,) = events.Images("panel/picture")
    assert (image.height, image.width) == (4, 6)


def test_a_restart_goes_on_in_the_same_folder_and_hides_what_is_trained_again(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path, 0)
    for step in (10, 20, 30):
        first.scalars({"a": float(step)}, step)
    first.close()  # the newest checkpoint is of step 15
    wait_for_next_second()
    second = TensorBoardSink(tmp_path, 15)
    second.scalars({"a": 21.0}, 20)
    second.close()
    assert points(tmp_path, "a") == [(10, 10.0), (20, 21.0)]
    assert second.folder == first.folder


def test_after_a_roll_back_the_void_steps_are_hidden(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, 0)
    for step in (10, 20, 30):
        sink.scalars({"a": 1.0}, step)
    wait_for_next_second()
    sink.go_back(20)
    sink.scalars({"a": 2.0}, 30)
    sink.close()
    assert points(tmp_path, "a") == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_settings_are_hyperparameters_and_a_table(tmp_path: Path) -> None:
    TensorBoardSink(tmp_path, 0, {"trainer.wgan.generator_lr": 2e-4, "trainer.audit": True, "input": "a|b"}).close()
    events = read(tmp_path)
    table = events.Tensors("configuration/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| trainer.wgan.generator_lr | 0.0002 |" in table
    assert "| input | a&#124;b |" in table
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    given = HParamsPluginData.FromString(content).session_start_info.hparams
    assert given["trainer.wgan.generator_lr"].number_value == 2e-4
    assert given["trainer.audit"].number_value == 1  # torch takes a bool for an int


def layout_of(run_dir: Path) -> dict[str, dict[str, list[str]]]:
    """Charts of the newest layout: category -> title -> names of the lines."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    newest = read(run_dir).Tensors("custom_scalars__config__")[-1]
    layout = layout_pb2.Layout.FromString(newest.tensor_proto.string_val[0])
    return {one.title: {chart.title: list(chart.multiline.tag) for chart in one.chart} for one in layout.category}


def test_losses_are_the_first_charts_and_a_value_and_its_floor_are_in_one(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, 0, {"seed": 1}, ("train/c_loss", "train/w_gap"))
    sink.flush()
    first = layout_of(tmp_path)
    assert list(first) == ["training", "speed and health"]
    assert first["training"]["train/w_gap"] == ["^train/w_gap$", "^train/w_gap_ma_500$", "^train/held_out_w_gap$"]
    sink.scalars({"panel/radius_w1": 2.0, "panel/radius_w1_floor": 1.0, "panel/score": 2.0}, 5)
    sink.go_back(3)
    sink.close()
    found = layout_of(tmp_path)
    assert list(found) == ["training", "distance from real events, and its floor", "speed and health"]
    assert found["distance from real events, and its floor"] == {
        "panel/radius_w1": ["^panel/radius_w1$", "^panel/radius_w1_floor$"]
    }


def test_a_trainer_of_an_older_attempt_hides_nothing_of_a_newer_one(tmp_path: Path) -> None:
    """It was frozen while its run was started again, and wakes up."""
    older_attempt = begin_attempt(tmp_path)
    older = TensorBoardSink(tmp_path, 0, publishing=older_attempt.publishing)
    for step in (10, 20):
        older.scalars({"a": float(step)}, step)
    older.flush()
    wait_for_next_second()
    newer = TensorBoardSink(tmp_path, 10, publishing=begin_attempt(tmp_path).publishing)
    newer.scalars({"a": 21.0}, 20)
    newer.close()
    older.scalars({"a": 30.0}, 30)
    with pytest.raises(OutdatedAttemptError):
        older.go_back(5)
    with pytest.raises(OutdatedAttemptError):
        TensorBoardSink(tmp_path, 5, publishing=older_attempt.publishing)
    assert points(tmp_path, "a") == [(10, 10.0), (20, 21.0)]


def test_they_are_flat_and_hold_what_is_trained_and_how() -> None:
    config = Config.model_validate({"input": ["a.parquet"], "seed": 3, "trainer": {"wgan": {"critic_steps": 7}}})
    found = hyperparameters(config.model_dump_json())
    assert found["trainer.wgan.critic_steps"] == 7
    assert found["seed"] == 3
    assert found["input"] == '["a.parquet"]'
    assert found["stream.shuffle"] is True
    assert all(isinstance(value, bool | int | float | str) for value in found.values())
    assert not [name for name in found if name.startswith(("token.", "pelican.", "outputs.", "transport.", "local."))]


def test_they_are_of_the_trained_model_alone() -> None:
    for model, other in (("wgan", "likelihood"), ("likelihood", "wgan")):
        found = hyperparameters(Config.model_validate({"trainer": {"model": model}}).model_dump_json())
        assert [name for name in found if name.startswith(f"trainer.{model}.")]
        assert [name for name in found if name.startswith("trainer.validation.")]
        assert not [name for name in found if name.startswith((f"trainer.{other}.", "trainer.sets."))]


def test_no_secret_is_in_them() -> None:
    jwt = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl"
    url = "https://me:password@host/x?authz=secret-token"
    config = Config.model_validate({"input": [url, f"/data/{jwt}/x"], "trainer": {"wandb": {"project": jwt}}})
    told = str(hyperparameters(config.model_dump_json()))
    assert "host/x" in told
    for secret in ("password", "secret-token", "c2lnbmF0dXJl"):
        assert secret not in told
