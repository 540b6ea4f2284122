"""Derived figures and page of benchmarks/gpu, by values computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu.channel import Finding, Row
from benchmarks.gpu.derived import Ceilings, ceilings_of, with_rates
from benchmarks.gpu.report import Measurement, page, slug, write
from benchmarks.gpu.setting import Setting

CEILINGS: list[Row] = [
    {"what": "matmul", "precision": "tf32", "shape": "big", "flop_per_s": 400e12},
    {"what": "layer", "precision": "tf32", "shape": "thin", "flop_per_s": 200e12},
    {"what": "device memory", "shape": "", "bytes_per_s": 4e12},
]
STEP: list[Row] = [
    {"variant": "plain", "precision": "tf32", "events": 1000, "particles": 4000, "seconds": 0.4, "flops": 8 * 10**12,
     "bytes": 8 * 10**11},
    {"variant": "shipped", "precision": "bf16", "events": 1000, "particles": 4000, "seconds": 0.1, "flops": 10**12,
     "bytes": 10**11},
    {"variant": "shipped", "precision": "tf32", "events": 1000, "particles": 4000, "seconds": 0.1, "flops": 10**12,
     "bytes": 10**11},
    {"variant": "compiled", "precision": "tf32", "events": 1000, "particles": 4000, "seconds": 0.05, "flops": 10**12},
    {"variant": "plain", "precision": "tf32", "events": 9000, "particles": 36000, "note": "out of memory"},
]  # fmt: skip


def test_ceilings_are_those_of_the_large_product_and_of_the_copy() -> None:
    assert ceilings_of(CEILINGS) == Ceilings({"tf32": 400e12}, 4e12)


def test_rates_shares_and_ratios_of_a_step() -> None:
    plain, bf16, tf32, compiled, nothing = with_rates(STEP, ceilings_of(CEILINGS))
    assert tf32["events_per_s"] == pytest.approx(10_000)
    assert tf32["flop_per_s"] == pytest.approx(10e12)
    assert tf32["flop_share"] == pytest.approx(0.025)
    assert tf32["bytes_per_s"] == pytest.approx(1e12)
    assert tf32["bytes_share"] == pytest.approx(0.25)
    assert tf32["bytes_per_particle"] == pytest.approx(25e6)
    assert tf32["roofline"] == pytest.approx(0.25), "bound by bytes"
    assert tf32["against_plain"] == pytest.approx(4)
    assert plain["against_plain"] == 1
    assert bf16["against_plain"] == pytest.approx(4), "the plain step in tf32"
    assert bf16["flop_share"] is None, "the ceiling of bf16 was not measured"
    assert bf16["roofline"] is None
    assert compiled["against_plain"] == pytest.approx(8)
    assert "roofline" not in compiled, "its bytes are not known"
    assert nothing == STEP[4]


def measurement(findings: list[Finding], device: str = "cuda") -> Measurement:
    machine: Row = {"device": "NVIDIA H100 80GB HBM3", "torch": "2.9.0, CUDA 12.8"}
    return Measurement("2026-01-02", "python -m benchmarks.gpu", "abc123", Setting(device), machine, findings, 12.0)


def findings() -> list[Finding]:
    return [
        Finding("ceilings", rows=list(CEILINGS)),
        Finding("step", rows=STEP[:3] + STEP[4:]),
        Finding("compiled", "failed", "RuntimeError: no | compiler", 3.0, rows=STEP[3:4]),
        Finding("tests", "skipped", "not installed: pytest (pip install pytest)"),
        Finding("checks", rows=[{"check": "a", "outcome": "failed"}], failures=["a: it differs"]),
        Finding("memory", "cut off", "after 40 s, its limit", left_out=["steps 3 to 5: no time was left"]),
    ]


def test_the_page_names_card_versions_commit_and_what_became_of_each_stage() -> None:
    text = page(measurement(findings()))
    for line in (
        "# First hour on a GPU: NVIDIA H100 80GB HBM3, 2026-01-02",
        "| torch | 2.9.0, CUDA 12.8 |",
        "| icestream | abc123 |",
        "| compiled | **failed** | 3 | RuntimeError: no / compiler |",
        "| tests | skipped | 0 | not installed: pytest (pip install pytest) |",
        "| checks | **failed** | 0 | a: it differs |",
        "| memory | cut off | 0 | after 40 s, its limit |",
        "- steps 3 to 5: no time was left",
    ):
        assert f"{line}\n" in text
    assert "figures say nothing about a GPU" not in text


def test_the_step_of_the_page_has_rates_units_and_dashes_for_what_is_not_known() -> None:
    text = page(measurement(findings()))
    assert (
        "| shipped | tf32 | 1,000 | 100.000 | 10,000 | 4.00 | 10.00 | 2 % | 1,000.0 | 25 % | 25 % | 24,414 | – |"
        in text
    )
    assert "| plain | tf32 | 9,000 | – | – | – | – | – | – | – | – | – | out of memory |" in text
    assert "| compiled | tf32 | 1,000 | 50.000 | 20,000 | 8.00 | 20.00 | 5 % |\n" in text


def test_a_page_of_the_cpu_says_so() -> None:
    assert "figures say nothing about a GPU" in page(measurement([], "cpu"))


def test_page_and_json_have_the_same_dated_name_and_replace_none(tmp_path: Path) -> None:
    first = write(measurement(findings()), tmp_path)
    second = write(measurement([]), tmp_path)
    assert [path.name for path in (*first, *second)] == [
        "2026-01-02-gpu-nvidia-h100-80gb-hbm3.md",
        "2026-01-02-gpu-nvidia-h100-80gb-hbm3.json",
        "2026-01-02-gpu-nvidia-h100-80gb-hbm3-2.md",
        "2026-01-02-gpu-nvidia-h100-80gb-hbm3-2.json",
    ]
    data = json.loads(first[1].read_text())
    assert data["machine"]["device"] == "NVIDIA H100 80GB HBM3"
    assert data["findings"][1]["rows"][2]["roofline"] == pytest.approx(0.25)
    assert data["findings"][2]["state"] == "failed"


def test_only_errors_and_failed_checks_are_bad() -> None:
    assert [one.name for one in findings() if one.is_bad] == ["compiled", "checks"]


def test_the_name_of_a_card_becomes_a_part_of_a_files_name() -> None:
    assert slug("NVIDIA A100-SXM4-80GB (MIG 3g.40gb)") == "nvidia-a100-sxm4-80gb-mig-3g-40gb"


def test_the_written_page_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    failed = Finding("step", "failed", "RuntimeError: no", traceback=f'File "{__file__}", File "{json.__file__}"')
    for path in write(measurement([failed]), tmp_path):
        assert str(Path(__file__).parents[2]) not in path.read_text()
        assert str(Path(json.__file__).parents[1]) not in path.read_text()
    assert "tests/benchmarks/test_gpu_derived.py" in path.read_text()
    assert "json/__init__.py" in path.read_text()
