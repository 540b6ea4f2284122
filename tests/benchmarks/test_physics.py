"""The harness of `make bench-physics`, in small."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.physics import cost, keys, runs, schedule, truth
from benchmarks.physics.data import batches, validation
from benchmarks.physics.models import make_model
from benchmarks.physics.one import complete
from benchmarks.physics.present_recipe import PresentRecipe, conditions, features, segments_of
from benchmarks.physics.report import BEGIN, END, read_results, write_page
from benchmarks.physics.spec import Row, Run, Source, Table
from benchmarks.physics.tables import markdown

TINY = Run("tiny", "wgan", steps=3, batch_events=64, events=200, c2st=False)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def said(told: list[str]):
    return lambda stage, done: told.append(stage)


# ---- Runs, end to end.


@pytest.mark.parametrize("model", ["wgan", "flow", "present", "count head"])
def test_a_run_of_each_model_ends_in_metrics_and_is_not_made_again(model: str, tmp_path: Path) -> None:
    run = replace(TINY, model=model)
    told: list[str] = []

    result = complete(run, tmp_path, said(told))
    assert "training" in told
    assert result["metrics"]["count_tv"]["value"] > 0
    assert np.isfinite(result["metrics"]["count_tv"]["floor"])
    assert result["extra"]["num_parameters"] > 10_000
    assert len(result["histograms"]["generated"]["log10_energy"]) == 50

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


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 4}, {"settings": {"penalty_weight": 2.0}}])
def test_other_settings_are_another_training(change: dict) -> None:
    assert keys.training_key(replace(TINY, **change)) != keys.training_key(TINY)
    assert keys.result_key(replace(TINY, **change)) != keys.result_key(TINY)


def test_another_count_head_is_trained_on_top_of_a_trained_generator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.physics.one.find", lambda name: TINY)
    monkeypatch.setattr("benchmarks.physics.keys.find", lambda name: TINY)
    settings = {"network": {"count_head": "mse"}}
    head = replace(TINY, name="head", model="count head", settings=settings, start_from=TINY.name)
    for run in (TINY, head):
        complete(run, tmp_path, said([]))

    first, second = (torch.load(keys.weights_path(run, tmp_path), weights_only=True)["state"] for run in (TINY, head))
    assert all(torch.equal(first["generator"][name], second["generator"][name]) for name in first["generator"])
    assert first["count_head"].keys() != second["count_head"].keys() or any(
        not torch.equal(first["count_head"][name], second["count_head"][name]) for name in first["count_head"]
    )


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


def test_all_runs_fit_into_half_an_hour_of_two_cores() -> None:
    assert sum(map(cost.expected_s, runs.in_order(runs.TABLES))) < cost.LIMIT_S


def test_every_run_has_a_name_of_its_own_and_can_be_made() -> None:
    named: dict[str, Run] = {}
    for table in runs.TABLES:
        for run in table.runs:
            assert named.setdefault(run.name, run) == run
            assert runs.find(run.name) == run
    for run in named.values():
        make_model(run)
        assert len(keys.training_key(run)) == 16


def test_a_run_comes_after_the_one_whose_weights_it_begins_with() -> None:
    names = [run.name for run in runs.in_order((runs.CORSIKA,))]
    assert names[0] == "wgan-s0"
    assert {"corsika-before", "corsika-tuned"} <= set(names[1:])
    assert [run.start_from for run in runs.in_order(runs.quick((runs.CORSIKA,)))][1] == "quick-wgan-s0"


# ---- Runs in processes. What they run is a few lines here.


def script(text: str):
    """A command that finds in NAME, RESULT and WEIGHTS what its run is called and where its files belong."""

    def command(run: Run, folder: Path) -> list[str]:
        given = {"NAME": run.name, "RESULT": keys.result_path(run, folder), "WEIGHTS": keys.weights_path(run, folder)}
        begin = "".join(f"{name} = {str(value)!r}\n" for name, value in given.items())
        begin += "import pathlib, sys, time\ndef write(path):\n"
        begin += "    path = pathlib.Path(path)\n    path.parent.mkdir(exist_ok=True)\n    path.write_text('{}')\n"
        return [sys.executable, "-c", begin + text]

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
    assert order.index("wgan-s0") < min(order.index("corsika-before"), order.index("corsika-tuned"))
    schedule.make_results(made, tmp_path, 3, said.append, writes)
    assert (tmp_path / "order").read_text().split() == order
    assert said[-1] == f"0 runs to make, {len(made)} kept; 3 at a time"


@pytest.mark.process
def test_a_run_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(schedule.RunFailed, match=r"(?s)no-empties-all failed.*no such luck"):
        schedule.make_results(
            runs.in_order((runs.NO_EMPTIES,)), tmp_path, 1, lambda text: None, script("sys.exit('no such luck')")
        )


@pytest.mark.process
def test_an_interruption_ends_the_processes(tmp_path: Path) -> None:
    waits = script(
        "if NAME == 'no-empties-all':\n"
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


def test_training_and_validation_share_no_primary() -> None:
    real, _ = validation(Source(), 1000)
    trained = torch.cat(
        [batch.microbatches[0].event_columns["primary"] for batch in islice(batches(Source(), 0, 250), 8)]
    )
    assert not set(real.primary_E4[:, 0].tolist()) & set(trained[:, 0].double().tolist())


def test_the_second_draw_has_the_same_primaries_and_other_muons() -> None:
    source = Source()
    real, second = validation(source, 20_000)
    assert second is not None
    a, b = real.bundles.counts_E, second.counts_E
    assert not np.array_equal(a, b)
    # Both fluctuate around the means of the same primaries: other primaries' counts would hardly be correlated.
    assert np.corrcoef(np.log1p(a), np.log1p(b))[0, 1] > 0.7


def test_rows_without_muons_are_left_out_of_both_draws() -> None:
    source = Source(empties=False)
    real, second = validation(source, 2000)
    assert second is not None
    assert len(real) == len(second) == 2000
    assert real.bundles.counts_E.min() == second.counts_E.min() == 1
    # One muon is by far the most frequent count of a primary that hardly ever has any.
    rare = real.bundles.counts_E == 1
    assert second.counts_E[rare].mean() < second.counts_E[~rare].mean()
    assert next(batches(source, 0, 256)).microbatches[0].num_present == 256


@pytest.mark.parametrize(("rows", "neighbours"), [("showers in order", True), ("showers shuffled", False)])
def test_rows_of_one_shower_are_neighbours_or_shuffled(rows: str, neighbours: bool) -> None:
    primary_E4 = next(batches(Source(rows=rows), 0, 200)).microbatches[0].event_columns["primary"]
    energies = primary_E4[:, 0].reshape(20, 10)
    assert bool((energies == energies[:, :1]).all()) is neighbours
    assert (len(primary_E4[:, 0].unique()) == 20) is neighbours


def test_rows_keep_their_own_muons_when_they_are_shuffled() -> None:
    from benchmarks.physics.data import corsika_rows

    rows = corsika_rows()
    turned = rows.taken(np.arange(len(rows))[::-1])
    assert turned.counts_E.tolist() == rows.counts_E[::-1].tolist()
    assert np.array_equal(turned.muons_P3[-1335:], rows.muons_P3[:1335])
    assert np.array_equal(turned.taken(np.arange(len(rows))[::-1]).muons_P3, rows.muons_P3)


@pytest.mark.parametrize("fluctuation", ["nb", "lognormal", "poisson"])
def test_the_simulators_own_likelihood_is_normalised_and_beats_a_wrong_one(fluctuation: str) -> None:
    source = Source(changes=(("fluctuation", fluctuation),))
    real, _ = validation(source, 4000)
    one = np.repeat(real.primary_E4[real.bundles.counts_E == 5][:1], 4000, axis=0)
    assert np.exp(truth.log_probability(one, np.arange(4000), source)).sum() == pytest.approx(1, abs=1e-6)
    wrong = Source(changes=(("fluctuation", "poisson" if fluctuation != "poisson" else "lognormal"),))
    own, other = (truth.mean_nll(real.primary_E4, real.bundles.counts_E, of) for of in (source, wrong))
    assert own < other


def test_the_likelihood_of_rows_with_muons_is_that_of_a_truncated_count() -> None:
    source = Source(empties=False)
    real, _ = validation(source, 10)
    one = real.primary_E4[:1]
    chances = [np.exp(-truth.mean_nll(one, np.array([num]), source)) for num in range(1, 3000)]
    assert sum(chances) == pytest.approx(1, abs=1e-6)


# ---- The present recipe has the defects that it is meant to have.


def recipe_and_events() -> tuple[PresentRecipe, torch.Tensor, torch.Tensor, torch.Tensor]:
    part = next(batches(Source(), 0, 300)).microbatches[0]
    recipe = PresentRecipe(CPU, 0)
    return recipe, part.event_columns["primary"], part.offsets_E1.diff(), part.particle_columns["muons"]


def test_the_present_recipe_gives_a_primary_the_same_count_each_time() -> None:
    recipe, primary_E4, _, _ = recipe_and_events()
    torch.nn.init.constant_(recipe.multiplicity.layers[-1].bias, 1.0)
    first, second = (recipe.draw_counts(primary_E4, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert first.sum() > 0
    assert torch.equal(first, second)


def test_the_present_recipes_critic_does_not_see_that_every_muon_is_there_twice() -> None:
    recipe, primary_E4, counts_E, muons_P3 = recipe_and_events()
    once = recipe.critic.raw(features(muons_P3), segments_of(counts_E), conditions(primary_E4))
    doubled = features(muons_P3).repeat_interleave(2, 0)
    twice = recipe.critic.raw(doubled, segments_of(2 * counts_E), conditions(primary_E4))
    assert once.std() > 1e-3
    assert torch.allclose(once, twice, atol=1e-6)


def test_the_present_recipes_critic_is_blind_to_the_primaries_of_empty_events() -> None:
    recipe, primary_E4, _, _ = recipe_and_events()
    nothing = torch.zeros(len(primary_E4), dtype=torch.int64)
    scores_E = recipe.critic.raw(torch.zeros(0, 3), segments_of(nothing), conditions(primary_E4))
    assert scores_E.isfinite().all()
    assert scores_E.std() < 1e-5


def test_the_present_recipes_score_changes_when_it_is_asked_again() -> None:
    recipe, primary_E4, counts_E, muons_P3 = recipe_and_events()
    told = [recipe.critic(features(muons_P3), segments_of(counts_E), conditions(primary_E4)) for _ in range(2)]
    assert not torch.equal(*told)
    assert max(one.abs().max().item() for one in told) <= 10 * np.tanh(1) + 1e-5


def test_the_present_recipes_counts_learn_from_the_adversarial_loss() -> None:
    recipe, primary_E4, counts_E, _ = recipe_and_events()
    conditions_EC = conditions(primary_E4)
    made = recipe.generator(conditions_EC, recipe.multiplicity(conditions_EC), segments_of(counts_E), torch.Generator())
    recipe.critic(made, segments_of(counts_E), conditions_EC).mean().backward()
    assert recipe.multiplicity.layers[0].weight.grad.abs().max() > 0


# ---- Tables.


def made_up(value: float, floor: float) -> dict:
    return {"metrics": {"count_tv": {"value": value, "floor": floor}}, "extra": {"train_cpu_s": 10.0}}


def test_a_table_has_medians_the_floor_and_the_best_in_bold() -> None:
    many = tuple(replace(TINY, name=f"a{seed}", seed=seed) for seed in range(3))
    table = Table(
        "t", "Title", "Why?", ("count_tv", "train_cpu_s"), (Row("a", many), Row("b", (replace(TINY, name="b"),)))
    )
    results = {f"a{index}": made_up(value, 0.01) for index, value in enumerate((0.5, 0.1, 0.2))} | {
        "b": made_up(0.3, 0.01)
    }

    assert markdown(table, results).splitlines()[4:] == [
        "|  | count TV | training, CPU s |",
        "| --- | --- | --- |",
        "| a | **0.2000** | 10 |",
        "| b | 0.3000 | 10 |",
        "| *floor* | 0.0100 | – |",
    ]
    del results["b"]
    assert "| b | – | – |" in markdown(table, results)
    assert "1 of 4 runs are not made yet." in markdown(table, results)


def test_the_acceptance_table_says_which_limits_are_missed() -> None:
    names = {name: {"value": limit, "floor": limit / 2} for name, limit in runs.LIMITS.items()}
    results = {run.name: {"metrics": dict(names), "extra": {}} for run in runs.WGAN}
    assert "WGAN, median: every limit is met." in markdown(runs.ACCEPTANCE, results)
    for run in runs.WGAN[:2]:
        results[run.name]["metrics"]["c2st_auc"] = {"value": 0.53, "floor": 0.5}
    assert "WGAN, median: C2ST AUC missed." in markdown(runs.ACCEPTANCE, results)


def test_the_page_keeps_its_own_text_around_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "physics.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page(page, {}, keys.ROOT / "benchmarks" / "results" / "some.json", ["![picture](some.png)"])
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "![picture](some.png)\n\n### What is asked" in text
    assert text.count("### What matters") == 1


def test_results_of_other_code_are_not_read(tmp_path: Path) -> None:
    run = runs.find("wgan-s0")
    path = keys.result_path(run, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"name": run.name}))
    (path.parent / "wgan-s1-0123456789abcdef.json").write_text("{}")
    assert set(read_results(runs.in_order((runs.ACCEPTANCE,)), tmp_path)) == {"wgan-s0"}


def test_a_second_draw_of_rows_with_muons_takes_the_count_from_the_truncated_law() -> None:
    """Against the simulator's own likelihood: the mean of -ln p is that of the first draw."""
    source = Source(empties=False)
    real, second = validation(source, 20_000)
    assert second is not None
    first, again = (
        truth.mean_nll(real.primary_E4, counts_E, source) for counts_E in (real.bundles.counts_E, second.counts_E)
    )
    assert first == pytest.approx(again, abs=0.05)
