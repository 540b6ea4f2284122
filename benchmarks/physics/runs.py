"""List of runs and tables, with their questions. All of it is data.

A run is defined once and may be in several tables. Steps and numbers of events are chosen so that all runs take less
than an hour of one core, thirty minutes on two; `--plan` shows the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.physics.spec import CORSIKA_FILE, Row, Run, Source, Table

LIMITS = {
    "count_tv": 0.02,
    "log10_energy_w1": 0.012,
    "log10_radius_w1": 0.008,
    "log10_bundle_energy_w1": 0.012,
    "log10_leading_energy_w1": 0.018,
    "conditional_log10_energy_w1": 0.026,
    "c2st_auc": 0.52,
}
"""Limits for the median of three seeds of the WGAN."""

_SHORT_STEPS, _SHORT_EVENTS = 400, 20_000
_MANY_EVENTS = 100_000
"""Events of the tables that are compared with limits: with 40,000, the floor is two thirds of some limits."""
_HEAVY_STEPS = 200
_ALL = (*list(LIMITS)[:3], "radius_m_w1", *list(LIMITS)[3:])
_COUNTS = ("count_tv", "log10_count_w1", "count_mean_ratio", "count_empty_difference", "count_pit_ks", "nll_excess")


def _seeds(run: Run, num: int) -> tuple[Run, ...]:
    return tuple(replace(run, name=f"{run.name}-s{seed}", seed=seed) for seed in range(num))


# ---- The default recipe, and its comparisons.

WGAN = _seeds(Run("wgan", "wgan", events=_MANY_EVENTS), 3)
PRESENT = _seeds(Run("present", "present", events=_MANY_EVENTS), 1)
FLOW = _seeds(Run("flow-2000", "flow", events=_MANY_EVENTS), 3)

ACCEPTANCE = Table(
    "acceptance",
    "What is asked",
    "Do the recipes reach the limits: `bench` preset, 2,000 steps of 256 events, median of three seeds?",
    _ALL,
    (
        Row("WGAN, median", WGAN),
        *(Row(f"WGAN, seed {run.seed}", (run,)) for run in WGAN),
        Row("flow, median", FLOW),
        *(Row(f"flow, seed {run.seed}", (run,)) for run in FLOW),
    ),
)
BASELINES = Table(
    "baselines",
    "Against other models",
    "How far off is the present recipe, and is a model that is not adversarial better, at how much of the time?",
    (*_ALL, "energy_radius_correlation_difference", "train_cpu_s", "events_per_s"),
    (
        Row("present recipe, 2,000 steps", PRESENT),
        Row("flow matching, 2,000 steps", FLOW),
        Row("WGAN, 2,000 steps", WGAN),
    ),
)

# ---- Hard cases.

_heavy = Run("heavy", "wgan", steps=_HEAVY_STEPS, source=Source("heavy"), events=_SHORT_EVENTS)
_heavy_flow = replace(_heavy, name="heavy-flow", model="flow", settings={"max_muons": 2000})
HEAVY = Table(
    "heavy",
    "Hard case: events of thousands of muons",
    f"What does it cost to let the critic see at most 2,000 muons of an event (`heavy` preset, {_HEAVY_STEPS} steps)?",
    (*_ALL, "train_cpu_s"),
    (
        Row("all muons", (_heavy,)),
        Row("at most 2,000", (replace(_heavy, name="heavy-2000", settings={"critic_max_muons": 2000}),)),
        Row("flow, at most 2,000", (_heavy_flow,)),
    ),
)

_TEN_DEPTHS = Source(changes=(("depth_steps", 10),))
_showers = Run("showers-none", "wgan", steps=_SHORT_STEPS, source=_TEN_DEPTHS, events=_SHORT_EVENTS)
SHOWERS = Table(
    "showers",
    "Hard case: ten rows of one shower",
    f"Do correlated rows harm the training, shuffled or as neighbours in a batch ({_SHORT_STEPS} steps)? All are judged"
    " by independent rows at the same ten depths.",
    _ALL,
    (
        Row("independent rows", (_showers,)),
        *(
            Row(
                rows, (replace(_showers, name=rows.replace(" ", "-"), source=Source(rows=rows), judged_by=_TEN_DEPTHS),)
            )
            for rows in ("showers shuffled", "showers in order")
        ),
    ),
)

_head = Run("head", "count head", steps=4000, c2st=False)
_MSE = {"network": {"count_head": "mse"}}


def _lognormal(name: str, network: dict[str, Any]) -> Run:
    source = Source(changes=(("fluctuation", "lognormal"),))
    return replace(_head, name=f"lognormal-{name}", source=source, settings={"network": network})


LOGNORMAL = Table(
    "lognormal",
    "Hard case: counts that are no negative binomial",
    "Lognormal fluctuations: how many negative binomials does the count head need (4,000 steps of the head alone)?",
    _COUNTS,
    (
        *(Row(f"K = {num}", (_lognormal(f"k{num}", {"count_components": num}),)) for num in (1, 2, 4)),
        Row("mean square error", (_lognormal("mse", {"count_head": "mse"}),)),
    ),
)

_no_empties = replace(_head, name="no-empties-plain", source=Source(empties=False), judged_by=Source())
_TRUNCATED = {"network": {"zero_truncated_counts": True}}
NO_EMPTIES = Table(
    "no-empties",
    "Hard case: files without empty events",
    "The training rows without muons are missing, as Muonitron leaves them out. Is what is generated still right, empty"
    " events included (4,000 steps of the head alone)? Judged by all rows.",
    _COUNTS,
    (
        Row("all rows, plain likelihood", (replace(_no_empties, name="no-empties-all", source=Source()),)),
        Row("plain likelihood", (_no_empties,)),
        Row("zero-truncated", (replace(_no_empties, name="no-empties-truncated", settings=_TRUNCATED),)),
    ),
)

_corsika = Run("corsika-before", "wgan", steps=0, source=Source(CORSIKA_FILE), start_from="wgan-s0", c2st=False)
_TUNE_STEPS = 200
CORSIKA = Table(
    "corsika",
    "Hard case: CORSIKA showers for fine-tuning",
    f"What do {_TUNE_STEPS} steps on the 11 CORSIKA showers of tests/data change, from the weights of the first"
    " WGAN above and from none? The showers that are trained on are those that are judged: there are no others.",
    tuple(name for name in _ALL if name not in ("c2st_auc", "conditional_log10_energy_w1")),
    (
        Row("`bench` weights, before", (_corsika,)),
        Row("`bench` weights, after", (replace(_corsika, name="corsika-tuned", steps=_TUNE_STEPS),)),
        Row("from none", (replace(_corsika, name="corsika-none", steps=_TUNE_STEPS, start_from=""),)),
    ),
)
FORGOTTEN = Table(
    "forgotten",
    "What fine-tuning forgets",
    "The same weights on `bench` events, before and after the steps on CORSIKA showers.",
    tuple(name for name in _ALL if name != "c2st_auc"),
    (
        Row("before", (WGAN[0],)),
        Row(
            "after",
            (replace(_corsika, name="forgotten", steps=_TUNE_STEPS, judged_by=Source()),),
        ),
    ),
)

# ---- Ablations: one change each, against the same reference.

REFERENCE = Run("ablation-reference", "wgan", steps=_SHORT_STEPS, events=_SHORT_EVENTS)


def _ablation(name: str, settings: dict[str, Any], *changes: str) -> tuple[Run, ...]:
    return (replace(REFERENCE, name=f"ablation-{name}", settings=settings, changes=changes),)


# These two do not change the training of the generator: it is the reference's.
_MEAN_COUNTS = replace(REFERENCE, name="ablation-mse", model="count head", settings=_MSE, start_from=REFERENCE.name)
_LATEST_WEIGHTS = replace(
    REFERENCE,
    name="ablation-no-average",
    steps=0,
    settings={"generator_average_decay": 0.0},
    start_from=REFERENCE.name,
)

ABLATIONS = Table(
    "ablations",
    "What matters",
    f"One change each, {_SHORT_STEPS} steps, one seed: which parts of the recipe are needed?",
    _ALL,
    (
        Row("default recipe", (REFERENCE,)),
        Row("nothing standardised", _ablation("raw", {}, "raw numbers")),
        Row("x, y in place of r", _ablation("xy", {"network": {"azimuth": "learned"}})),
        Row("count head: mean square error", (_MEAN_COUNTS,)),
        Row("no energy score", _ablation("no-score", {"energy_score_weight": 0.0})),
        Row("penalty per muon, any pairs", _ablation("per-muon", {}, "penalty per muon")),
        Row("λ = 10", _ablation("lambda-10", {"penalty_weight": 10.0})),
        Row("pooling: maximum", _ablation("max", {"network": {"pooling": "max"}})),
        Row("latest weights, no mean", (_LATEST_WEIGHTS,)),
    ),
)

TABLES = (ACCEPTANCE, BASELINES, HEAVY, SHOWERS, LOGNORMAL, NO_EMPTIES, CORSIKA, FORGOTTEN, ABLATIONS)


QUICK = "quick-"
_QUICK_STEPS, _QUICK_EVENTS = 50, 4000


def quick(tables: tuple[Table, ...]) -> tuple[Table, ...]:
    """Tables with runs of some seconds: a test that everything works, not of quality."""
    return tuple(
        replace(table, rows=tuple(replace(row, runs=tuple(_quick(run) for run in row.runs)) for row in table.rows))
        for table in tables
    )


def in_order(tables: tuple[Table, ...]) -> list[Run]:
    """Runs, each once and after the run from whose weights it starts."""
    found: dict[str, Run] = {}
    for run in (run for table in tables for run in table.runs):
        if run.start_from:
            found.setdefault(run.start_from, find(run.start_from))
        found.setdefault(run.name, run)
    return list(found.values())


def find(name: str) -> Run:
    """Run named ``name``. Raises KeyError if there is none."""
    by_name = {run.name: run for table in TABLES for run in table.runs}
    return _quick(by_name[name.removeprefix(QUICK)]) if name.startswith(QUICK) else by_name[name]


def _quick(run: Run) -> Run:
    return replace(
        run,
        name=QUICK + run.name,
        start_from=QUICK + run.start_from if run.start_from else "",
        steps=min(run.steps, _QUICK_STEPS),
        events=_QUICK_EVENTS,
    )
