"""`icestream evaluate` as it is typed: what it writes, prints and answers."""

from __future__ import annotations

import json
import math
import re
import sys
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from muon_files import make_events, make_table
from tiny_run import write_tiny_run

from icestream import cli, verbs
from workloads.base.report import evaluation as plots
from workloads.muons import evaluation
from workloads.muons.evaluation import HEADLINE
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

FAST = ("--bootstraps", "4", "--c2st-epochs", "1")


@pytest.fixture
def icestream(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """The command as it is typed, in this process."""
    monkeypatch.setattr(plots, "DPI", 30)

    def run(*arguments: str | Path) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["icestream", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return SimpleNamespace(code=code, **capfd.readouterr()._asdict())

    return run


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time."""
    monkeypatch.setattr(evaluation.GALLERY, "draw", lambda shown: [])


def simulate(folder: Path, events: int, *, depths: int = 0, preset_name: str = "bench") -> Path:
    write_dataset(folder, preset(preset_name), DatasetPlan(events, 2, 2, depths_per_shower=depths))
    return folder


@pytest.mark.slow
def test_a_run_directory_gets_a_report_of_files_that_were_simulated(icestream: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_tiny_run(run)
    limits = tmp_path / "limits.toml"
    limits.write_text("count_tv = 1e-6\nradius_m_w1 = 1e6\nc2st_auc = { max = 0.1 }\n")
    files = simulate(tmp_path / "files", 2600, preset_name="flat")
    of_few = "stream.where=muons.count > 5"  # the floors would not be those of filtered events
    what = ("-i", files, "--simulated", "flat", "--events", "2500", "--thresholds", limits, "--set", of_few)
    answer = icestream("evaluate", run, *what, *FAST)
    folder = run / "evaluation"
    assert answer.code == 3, answer.err
    sentence, last = answer.out.splitlines()[-2:]
    assert re.match(
        r"Headline metrics at the floor: wgan \d+ of \d+ \(all: \d+ of \d+\); wgan.s numbers of muons are ", sentence
    )
    assert escape(sentence) in (folder / "report.html").read_text()
    assert last == f"report: {folder / 'report.html'}"
    assert re.search(r"^missed: count_tv: [\d.]+, limit 1e-06$", answer.err, re.M)
    assert re.search(r"^missed: c2st_auc: [\d.]+, limit 0.1$", answer.err, re.M)
    assert "radius_m_w1" not in answer.err
    for name in HEADLINE:
        # The untrained generator has no muon above 10 TeV: 0, without an error.
        assert re.search(rf"^{name} +[\d.]+ (± [\d.]+ )?(dex|m)? +[\d.]+ ", answer.out, re.M), name

    report = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    for name in HEADLINE:
        metric = report["metrics"][name]
        assert all(math.isfinite(metric[key]) for key in ("value", "error", "floor")), name
        floor = {"floor", "floor_error", "floor_spread"}
        words = {"unit", "better", "verdict", "meaning"}
        assert set(metric) == {*floor, *words, "value", "error", "ratio", "sigmas", "shift"}
    assert set(report["thresholds_missed"]) == {"count_tv", "c2st_auc"}
    assert report["checkpoint"] == str(run / "checkpoints" / "step-000000003.pt")
    assert (report["step"], report["events"], report["seed"], report["model"]) == (3, 2500, 0, "wgan")
    assert report["floor_kind"] == "same primaries"
    assert report["inputs"] == [str(files)]
    assert report["warnings"] == []
    assert re.fullmatch(r"[0-9a-f]{16}", report["config_digest"])
    assert {"python", "torch", "numpy"} <= set(report["versions"])

    # The page shows every metric and every picture, and fetches nothing.
    assert len(report["pictures"]) == 11
    for name in report["pictures"]:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    text = (folder / "report.html").read_text()
    references = re.findall(r'\b(?:src|href|srcset|data|poster|action)="([^"]*)"', text)
    pictures = [one for one in references if one.startswith("data:image/png;base64,")]
    anchors = {one.removeprefix("#") for one in references if one.startswith("#")}
    assert len(pictures) == 11
    assert anchors == {"numbers", "plots", "about", *(name.removesuffix(".png") for name in report["pictures"])}
    assert all(f'id="{name}"' in text for name in anchors)
    assert all(one in pictures or one.startswith("#") for one in references)
    assert not re.search(r"<(script|link|iframe|object|base)\b|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert "is not applied: these are all events of the files" in text
    assert all(f"<code>{name}</code>" in text for name in report["metrics"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_files_that_were_trained_on_are_told_loudly_unless_only_events_held_out_are_used(
    icestream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MAX_COUNT", 3)
    files = simulate(tmp_path / "files", 400, depths=5)
    checkpoint = write_tiny_run(tmp_path / "run", (str(files), "https://user:secret@host/x.parquet"))
    moved = tmp_path / "elsewhere.pt"
    checkpoint.rename(moved)
    answer = icestream("evaluate", moved, "-i", files, "--events", "0", *FAST)
    assert answer.code == 0, answer.err
    assert re.search(r"^WARNING: 2 of the 2 files are among those that the model was trained on", answer.err, re.M)
    folder = tmp_path / "elsewhere-evaluation"
    report = json.loads((folder / "report.json").read_text())
    assert report["events"] == 400
    assert report["floor_kind"] == "disjoint showers"
    assert "trained on" in report["warnings"][0]
    assert any("had more than 3 muons" in note for note in report["notes"])
    text = (folder / "report.html").read_text()
    assert 'class="warning"' in text
    assert "<th>simulated</th><td>–</td>" in text
    assert "None" not in text
    assert "secret" not in text + (folder / "report.json").read_text() + answer.out + answer.err

    checkpoint = write_tiny_run(tmp_path / "other", (str(files),), held_out=0.4)
    answer = icestream("evaluate", checkpoint, "-i", files, "--events", "0", *FAST, "-o", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "WARNING" not in answer.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert 80 < report["events"] < 240
    assert report["warnings"] == []
    assert any("only events that its run held out of training are used" in note for note in report["notes"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_without_files_the_events_are_drawn_and_can_be_weighted(icestream: Any, tmp_path: Path) -> None:
    checkpoint, out = write_tiny_run(tmp_path / "run"), tmp_path / "out"
    what = ("--simulate", "bench", "--events", "150", "--weights", "h3a", "-o", out)
    answer = icestream("evaluate", checkpoint, *what, *FAST)
    assert answer.code == 0, answer.err
    report = json.loads((out / "report.json").read_text())
    assert (report["simulated"], report["weights"], report["events"]) == ("bench", "h3a", 150)
    assert any("weighted events" in note for note in report["notes"])
    # Real events are not their own second draw.
    assert report["metrics"]["log10_energy_w1"]["floor"] > 1e-3


@pytest.mark.usefixtures("no_pictures")
def test_floors_may_be_found_with_files_of_further_draws(icestream: Any, tmp_path: Path) -> None:
    run = write_tiny_run(tmp_path / "run").parent.parent
    for name, muons in (("real", (2, 0)), ("again-1", (0, 5)), ("again-2", (1, 3))):
        pq.write_table(make_table(make_events(muons * 60)), tmp_path / f"{name}.parquet")
    again = str(tmp_path / "again-*.parquet")
    answer = icestream("evaluate", run, "-i", tmp_path / "real.parquet", "--redraws", again, *FAST)
    assert answer.code == 0, answer.err
    report = json.loads((run / "evaluation" / "report.json").read_text())
    assert (report["floor_kind"], report["redraws"], report["redraw_files"]) == ("same primaries", 2, [again])
    # 300 and 240 muons in place of 120.
    assert report["metrics"]["count_mean_ratio"]["floor"] == pytest.approx((300 + 240) / 2 / 120)
    options = {"c2st_epochs": 1, "bootstraps": 4, "device": "cpu", "redraws": again}
    found = verbs.evaluate(run, tmp_path / "real.parquet", **options)  # type: ignore[arg-type]
    assert found["count_mean_ratio"].floor == report["metrics"]["count_mean_ratio"]["floor"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "name the events to compare with: files with -i, or --simulate PRESET"),
        (["-i", "x", "--simulate", "bench"], "either files with -i, or --simulate PRESET, not both"),
        (["--simulate", "bench", "--simulated", "bench"], "--simulated is about files"),
        (["--simulate", "bench", "--redraws", "x"], "either --redraws, or the simulator draws the events again"),
        (["--simulate", "bench", "--events", "0"], "with --simulate say how many"),
        (["--simulate", "bench", "--weights", "w"], "simulated events have no columns"),
        (["-i", "x", "--weights", "h3a"], "needs the spectrum that the events were made with"),
        (["-i", "x", "--events", "5"], "at least 100"),
        (["-i", "x", "--device", "tpu"], "expected auto, cpu, cuda or cuda:N"),
        (["-i", "no/such/*.parquet"], "no file matches this glob"),
        (["-i", "x", "--thresholds", "none.toml"], "none.toml: no such threshold file"),
        (["-i", "x", "--thresholds", "limits.toml"], "limits.toml: unknown metric 'count_tw'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    icestream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.toml").write_text("count_tw = 0.1\n")
    write_tiny_run(tmp_path / "run")
    answer = icestream("evaluate", "run", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    last = answer.err.splitlines()[-1]
    assert last.startswith("Error: ")
    assert reason in last
    assert not (tmp_path / "run" / "evaluation").exists()


def table_of(text: str) -> list[str]:
    """Lines from the head of the table on."""
    lines = text.splitlines()
    return lines[next(number for number, line in enumerate(lines) if line.startswith("metric ")) :]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_second_run_is_shown_beside_with_its_values_and_verdicts(
    icestream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MAX_COUNT", 3)
    run, other = tmp_path / "run", tmp_path / "other"
    write_tiny_run(run)
    write_tiny_run(other, model="likelihood")
    what = ("--simulate", "bench", "--events", "200", *FAST)
    alone = icestream("evaluate", other, *what)
    answer = icestream("evaluate", run, *what, "--beside", other)
    assert (alone.code, answer.code) == (0, 0), answer.err
    head, *rows = table_of(answer.out)
    of_run = r" ± error +× floor +σ +verdict"
    assert re.match(rf"metric +floor ± error +wgan{of_run} +likelihood{of_run}$", head)
    counts = r"(wgan|likelihood) \d+ of \d+ \(all: \d+ of \d+\)"
    assert re.search(rf"; headline metrics at the floor: {counts}, {counts}; .*\nreport: ", answer.out)
    assert re.search(rf"^beside: {other}/checkpoints/step-000000003.pt \(likelihood, step 3\)$", answer.out, re.M)
    row = next(row for row in rows if row.startswith("log10_energy_w1 "))
    assert re.search(r" dex +([\d.]+ +)?[>\d. ]+ +off +[\d.]+ ± [\d.]+ dex +([\d.]+ +)?[>\d. ]+ +off$", row)

    folder = run / "evaluation"
    report = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    others_alone = json.loads((other / "evaluation" / "report.json").read_text())
    assert report["beside"]["metrics"] == others_alone["metrics"]
    assert "beside" not in others_alone
    about = report["beside"]["provenance"]
    assert (about["model"], about["step"]) == ("likelihood", 3)
    assert about["config_digest"] == others_alone["config_digest"] != report["config_digest"]
    assert any(note.startswith("likelihood: ") and "had more than 3 muons" in note for note in report["notes"])
    assert f"<code>{about['checkpoint']}</code> (likelihood, step 3)" in (folder / "report.html").read_text()


@pytest.mark.usefixtures("no_pictures")
def test_events_that_a_run_beside_was_trained_on_are_told(icestream: Any, tmp_path: Path) -> None:
    files = simulate(tmp_path / "files", 200)
    write_tiny_run(tmp_path / "run", held_out=0.5)
    write_tiny_run(tmp_path / "other", (str(files),))
    beside = ("--beside", tmp_path / "other", "--thresholds", tmp_path / "limits.toml")
    (tmp_path / "limits.toml").write_text("count_tv = 0\n")
    answer = icestream("evaluate", tmp_path / "run", "-i", files, *FAST, *beside)
    assert answer.code == 3, answer.err
    assert re.search(r"^WARNING: 2 of the 2 files are among those that the model was trained on", answer.err, re.M)
    head = table_of(answer.out)[0]
    assert re.search(r" run ± error .* other ± error ", head)
    assert answer.err.count("missed: count_tv") == 1
    assert json.loads((tmp_path / "run" / "evaluation" / "report.json").read_text())["events"] == 200


def test_a_run_beside_that_can_not_be_shown_is_one_line_and_exit_code_2(icestream: Any, tmp_path: Path) -> None:
    write_tiny_run(tmp_path / "run")
    what = ("evaluate", tmp_path / "run", "--simulate", "bench", "--beside")
    answer = icestream(*what, tmp_path / "none")
    assert answer.code == 2
    assert answer.err == f"Error: --beside: {tmp_path / 'none'}: no such checkpoint or run directory\n"
    answer = icestream(*what, tmp_path)
    assert answer.code == 2
    assert answer.err.count("name a checkpoint") == 1
    same = icestream(*what, tmp_path / "run" / "checkpoints" / "step-000000003.pt")
    assert same.code == 2
    assert same.err.endswith("step-000000003.pt is the checkpoint that is evaluated: name another one\n")
    assert same.err.count("\n") == 1
    assert not (tmp_path / "run" / "evaluation").exists()


def test_events_of_one_shower_can_not_be_compared(icestream: Any, tmp_path: Path) -> None:
    write_tiny_run(tmp_path / "run")
    write_dataset(tmp_path / "files", preset("bench"), DatasetPlan(100, 1, 1, depths_per_shower=100))
    answer = icestream("evaluate", tmp_path / "run", "-i", tmp_path / "files")
    assert answer.code == 2
    assert "the events are all of one shower" in answer.err
    table = make_table(make_events([1, 2, 3])).append_column("w", pa.array([0.0, 1.0, 0.0]))
    pq.write_table(table, tmp_path / "a.parquet")
    answer = icestream("evaluate", tmp_path / "run", "-i", tmp_path / "a.parquet", "--weights", "w", *FAST)
    assert answer.code == 2
    assert "the events with a weight above 0 are all of one shower" in answer.err.splitlines()[-1]


def test_a_wgan_of_which_only_the_likelihood_model_is_trained_is_told() -> None:
    for first, notes in (
        (1500, ["step 3 of the 1,500 that train the likelihood model: generator and critic follow"]),
        (1, []),
    ):
        run: Any = SimpleNamespace(step=3, section={"likelihood_steps": first})
        assert [*evaluation.not_begun(run)] == notes
