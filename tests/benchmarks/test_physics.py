"""The harness of `make bench-physics`, in small."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.physics import cost, keys, runs, schedule
from benchmarks.physics.data import batch_of, batches, corsika_rows, evaluation_events, redrawn, tail_primaries
from benchmarks.physics.models import make_model
from benchmarks.physics.one import complete
from benchmarks.physics.spec import Run, Source

TINY = Run("tiny", "likelihood", steps=3, batch_events=64, events=200, generations=2, tail_events=300, c2st_events=0)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def said(told: list[str]):
    return lambda stage, done: told.append(stage)


# ---- Runs, end to end.


@pytest.mark.parametrize("model", ["wgan", "likelihood", "count head", "simulator"])
def test_a_run_of_each_model_ends_in_metrics_and_is_not_made_again(model: str, tmp_path: Path) -> None:
    run = replace(TINY, model=model, tail_events=0 if model == "count head" else 300)
    told: list[str] = []

    result = complete(run, tmp_path, said(told))
    values = result["values"]
    assert ("training" in told) is (model != "simulator")
    assert len(values["count_tv"]) == 2
    assert min(values["count_tv"]) > 0
    assert ("log10_energy_w1" in values) is (model != "count head")
    assert ("muon_nats_excess" in values) is (model == "likelihood")
    assert len(values.get("energy_above_1_tev_ratio", [])) == {"count head": 0, "simulator": 2}.get(model, 1)
    assert len(result["histograms"]["log10_energy"]) == 50

    told.clear()
    assert complete(run, tmp_path, said(told)) == result
    assert told == []


def test_what_training_does_not_depend_on_makes_no_new_training(tmp_path: Path) -> None:
    told: list[str] = []
    complete(TINY, tmp_path, said(told))
    told.clear()
    complete(replace(TINY, name="more", events=300), tmp_path, said(told))
    assert "training" not in told
    assert told


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 4}, {"bf16": True}, {"settings": {"muon_weight": 0.5}}])
def test_other_settings_are_another_training(change: dict) -> None:
    assert keys.training_key(replace(TINY, **change)) != keys.training_key(TINY)
    assert keys.result_key(replace(TINY, **change)) != keys.result_key(TINY)


def test_a_result_does_not_depend_on_the_runs_before_it_in_the_process(tmp_path: Path) -> None:
    first = complete(TINY, tmp_path / "alone", said([]))
    torch.rand(7)
    complete(replace(TINY, name="other", seed=3), tmp_path / "second", said([]))
    second = complete(TINY, tmp_path / "second", said([]))
    for result in (first, second):
        for name in ("train_cpu_s", "simulate_cpu_s", "evaluate_cpu_s", "events_per_s"):
            del result["values"][name]
    assert first["values"] == second["values"]


def test_a_count_head_alone_learns_what_it_learns_beside_densities() -> None:
    heads = []
    for model in ("likelihood", "count head"):
        made = make_model(replace(TINY, model=model))
        for batch in islice(batches(Source(), 1, 64), 3):
            made.step(batch)
        heads.append(made.state_dict()["count_head"])
    assert all(torch.allclose(heads[0][name], heads[1][name], atol=1e-5) for name in heads[0])


def test_comments_and_docstrings_change_no_key_and_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "ROOT", tmp_path)
    digests = []
    for text in ('"""One."""\nx = 1\n', '"""Two."""\n\nx = 1  # why\n', '"""Two."""\nx = 2\n'):
        (tmp_path / "code.py").write_text(text)
        keys.code_digest.cache_clear()
        digests.append(keys.code_digest(("code.py",)))
    keys.code_digest.cache_clear()
    assert digests[0] == digests[1] != digests[2]


# ---- The list of runs.


def test_all_runs_fit_into_a_quarter_of_an_hour_on_two_cores() -> None:
    assert sum(map(cost.expected_s, runs.in_order(runs.TABLES))) < cost.LIMIT_S


def test_every_run_has_a_name_of_its_own_and_can_be_made() -> None:
    named: dict[str, Run] = {}
    for table in runs.TABLES:
        for run in table.runs:
            assert named.setdefault(run.name, run) == run
            assert runs.find(run.name) == run
    for run in named.values():
        if run.model != "simulator":
            make_model(run)
        assert len(keys.training_key(run)) == 16


def test_a_run_comes_after_the_one_whose_weights_it_begins_with() -> None:
    names = [run.name for run in runs.in_order((runs.CORSIKA,))]
    assert names[0] == "likelihood-s10"
    assert {"corsika-before-s10", "corsika-tuned-s10"} <= set(names[1:])
    assert [run.start_from for run in runs.in_order(runs.quick((runs.CORSIKA,)))][1] == "quick-likelihood-s10"


def test_nothing_that_is_quoted_has_a_seed_or_primaries_of_the_tuning() -> None:
    quoted = [run for table in runs.TABLES for run in table.runs]
    assert not any(run.tuning for run in quoted)
    assert {run.seed for run in quoted if run.model != "simulator"} == {10, 11, 12, 13, 14}
    assert all(run.tuning and run.seed < 5 for run in runs.TUNING.runs)
    for a, b in (
        [evaluation_events(Source(), 1000, tuning=tuning).primary_E4 for tuning in (False, True)],
        [tail_primaries(Source(), 1000, tuning=tuning) for tuning in (False, True)],
    ):
        assert not set(a[:, 0].tolist()) & set(b[:, 0].tolist())


def test_every_table_with_a_floor_has_it_for_the_events_of_its_rows() -> None:
    for table in runs.TABLES:
        if table.floor:
            events = {(run.judged_by or run.source, run.events, run.tuning) for run in table.runs}
            assert events == {(table.floor.source, table.floor.events, False)}
            assert table.floor.generations >= 8


# ---- Runs in processes. What they run is a few lines here.


def script(text: str):
    """A command that finds in NAME, RESULT and WEIGHTS what each run is called and where its files belong."""

    def command(some: Sequence[Run], folder: Path) -> list[str]:
        given = [(run.name, str(keys.result_path(run, folder)), str(keys.weights_path(run, folder))) for run in some]
        begin = "import pathlib, sys, time\ndef write(path):\n"
        begin += "    path = pathlib.Path(path)\n    path.parent.mkdir(exist_ok=True)\n    path.write_text('{}')\n"
        begin += f"for NAME, RESULT, WEIGHTS in {given!r}:\n"
        return [sys.executable, "-c", begin + textwrap.indent(text, "    ")]

    return command


@pytest.mark.process
def test_runs_are_made_once_and_after_the_weights_that_they_begin_with(tmp_path: Path) -> None:
    made = runs.in_order((runs.CORSIKA, runs.NO_EMPTIES))
    writes = script(
        "import os\nopen(os.path.dirname(RESULT) + '/../order', 'a').write(NAME + ' ')\nwrite(WEIGHTS); write(RESULT)"
    )
    (tmp_path / "results").mkdir()
    said: list[str] = []
    schedule.make_results(made, tmp_path, 3, said.append, writes)

    order = (tmp_path / "order").read_text().split()
    assert sorted(order) == sorted(run.name for run in made)
    assert order.index("likelihood-s10") < min(order.index("corsika-before-s10"), order.index("corsika-tuned-s10"))
    schedule.make_results(made, tmp_path, 3, said.append, writes)
    assert (tmp_path / "order").read_text().split() == order
    assert said[-1] == f"0 runs to make, {len(made)} kept; 3 at a time"


@pytest.mark.process
def test_a_run_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(schedule.RunFailed, match=r"(?s)floor-counts and \d+ more failed.*no such luck"):
        schedule.make_results(
            runs.in_order((runs.NO_EMPTIES,)), tmp_path, 1, lambda text: None, script("sys.exit('no such luck')")
        )


@pytest.mark.process
def test_an_interruption_ends_the_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(schedule, "_TOGETHER_S", 0.0)
    waits = script(
        "if NAME == 'no-empties-all-s10':\n"
        "    while not pathlib.Path(RESULT).parent.parent.joinpath('pid').exists(): time.sleep(0.01)\n"
        "    write(RESULT)\n"
        "else:\n"
        "    import os\n"
        "    pathlib.Path(RESULT).parent.parent.joinpath('part').write_text(str(os.getpid()))\n"
        "    pathlib.Path(RESULT).parent.parent.joinpath('part').rename(pathlib.Path(RESULT).parent.parent / 'pid')\n"
        "    time.sleep(200)\n"
    )

    def interrupt(text: str) -> None:
        if "done" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        schedule.make_results(runs.in_order((runs.NO_EMPTIES,)), tmp_path, 2, interrupt, waits)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# ---- Events.


def test_training_and_evaluation_share_no_primary() -> None:
    real = evaluation_events(Source(), 1000)
    trained = torch.cat(
        [batch.microbatches[0].event_columns["primary"] for batch in islice(batches(Source(), 0, 250), 8)]
    )
    assert not set(real.primary_E4[:, 0].tolist()) & set(trained[:, 0].double().tolist())


def test_a_redraw_has_the_same_primaries_and_other_muons() -> None:
    source = Source()
    real = evaluation_events(source, 20_000)
    a, b = real.bundles.counts_E, redrawn(real.primary_E4, source.config, np.random.default_rng(1)).counts_E
    assert not np.array_equal(a, b)
    # Both fluctuate around the means of the same primaries: other primaries' counts would hardly be correlated.
    assert np.corrcoef(np.log1p(a), np.log1p(b))[0, 1] > 0.7


def test_rows_without_muons_can_be_left_out_of_the_training() -> None:
    assert next(batches(Source(empties=False), 0, 256)).microbatches[0].num_present == 256


@pytest.mark.parametrize(("rows", "neighbours"), [("showers in order", True), ("showers shuffled", False)])
def test_rows_of_one_shower_are_neighbours_or_shuffled(rows: str, neighbours: bool) -> None:
    primary_E4 = next(batches(Source(rows=rows), 0, 200)).microbatches[0].event_columns["primary"]
    energies = primary_E4[:, 0].reshape(20, 10)
    assert bool((energies == energies[:, :1]).all()) is neighbours
    assert (len(primary_E4[:, 0].unique()) == 20) is neighbours


def test_rows_keep_their_own_muons_when_they_are_shuffled() -> None:
    rows = corsika_rows()
    turned = rows.taken(np.arange(len(rows))[::-1])
    assert turned.counts_E.tolist() == rows.counts_E[::-1].tolist()
    assert np.array_equal(turned.muons_P3[-rows.counts_E[0] :], rows.muons_P3[: rows.counts_E[0]])
    assert np.array_equal(turned.taken(np.arange(len(rows))[::-1]).muons_P3, rows.muons_P3)


def test_a_batch_of_a_sample_has_its_events() -> None:
    real = evaluation_events(Source(), 100)
    part = batch_of(real).microbatches[0]
    assert part.offsets_E1.diff().tolist() == real.bundles.counts_E.tolist()
    assert np.allclose(part.particle_columns["muons"][:, 0], real.bundles.energy_gev_P)
