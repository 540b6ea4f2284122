"""List of runs and tables, with their questions. All of it is data.

A run is defined once and may be in several tables. Steps and numbers of events are chosen so that all runs take at most
half an hour of one core, fifteen minutes on two; `--plan` shows the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.physics.spec import CORSIKA_FILE, Limit, Row, Run, Source, Table

LIMITS = {
    "likelihood": {
        "count_tv": Limit(0.0135, 0.010),
        "count_mean_ratio": Limit(0.01, 0.005, "around one"),
        "log10_energy_w1": Limit(0.0025, 0.002),
        "log10_radius_w1": Limit(0.0050, 0.003),
        "radius_m_w1": Limit(0.10, 0.06),
        "log10_bundle_energy_w1": Limit(0.0065, should_floors=1.2),
        "log10_leading_energy_w1": Limit(0.0055, should_floors=1.2),
        "conditional_log10_energy_w1": Limit(0.0125, should_floors=1.2),
        "c2st_auc": Limit(0.505, 0.503),
        "muon_nats_excess": Limit(0.002, 0.001),
        "radius_variance_ratio": Limit(0.20, 0.10, "around one"),
        "energy_above_10_tev_ratio": Limit(0.15, 0.08, "around one"),
        "energy_above_30_tev_ratio": Limit(0.35, 0.20, "around one"),
        "train_cpu_s": Limit(25, 15),
        "events_per_s": Limit(200_000, 400_000, "at least"),
    },
    "wgan": {
        "log10_energy_w1": Limit(0.007),
        "log10_radius_w1": Limit(0.005),
        "c2st_auc": Limit(0.507),
        "energy_above_10_tev_ratio": Limit(0.75, kind="at least"),
    },
}
"""Limits on the median of five seeds, by model."""

LIMITS_OF_EACH = {
    "count_tv": Limit(0.02),
    "log10_energy_w1": Limit(0.012),
    "log10_radius_w1": Limit(0.008),
    "log10_bundle_energy_w1": Limit(0.012),
    "log10_leading_energy_w1": Limit(0.018),
    "conditional_log10_energy_w1": Limit(0.026),
    "c2st_auc": Limit(0.52),
}
"""Limits on every single seed of the WGAN: those that were once asked of its median."""

_SEEDS, _TUNING_SEEDS, _HARD_SEEDS = range(10, 15), range(5), range(10, 13)
"""Limits and defaults were chosen on training seeds 0 to 4: nothing that is quoted has them."""
_EVENTS, _TAIL_EVENTS, _C2ST_EVENTS = 100_000, 1_000_000, 50_000
_HARD_EVENTS = 20_000
_REDRAWS = 8
_DISTANCES = ("count_tv", "count_mean_ratio", *list(LIMITS["likelihood"])[2:8])
_COUNTS = ("count_tv", "log10_count_w1", "count_mean_ratio", "count_empty_difference", "count_nats_excess")


def _seeds(run: Run, seeds: range = _HARD_SEEDS) -> tuple[Run, ...]:
    return tuple(replace(run, name=f"{run.name}-s{seed}", seed=seed) for seed in seeds)


def _floor(name: str, source: Source, **changes: Any) -> Run:
    """Run of the simulator: events of ``source``, drawn again."""
    run = Run(f"floor-{name}", "simulator", steps=0, source=source, generations=_REDRAWS, events=_HARD_EVENTS)
    return replace(run, **changes)


# ---- Quality of the models.

_MANY: dict[str, Any] = {
    **{"events": _EVENTS, "tail_events": _TAIL_EVENTS, "c2st_events": _C2ST_EVENTS, "attention": True},
}
_FLOOR = _floor("bench", Source(), **_MANY)
_wgan, _likelihood = replace(Run("wgan", "wgan"), **_MANY), replace(Run("likelihood", "likelihood"), **_MANY)
WGAN, LIKELIHOOD = _seeds(_wgan, _SEEDS), _seeds(_likelihood, _SEEDS)

QUALITY = Table(
    "quality",
    "Quality",
    "How far from the simulator are the models, after 2,000 steps of 256 `bench` events? Median of training seeds"
    " 10-14, and their range. *Must* and *should* are what was asked of the likelihood model.",
    (
        *_DISTANCES,
        "c2st_auc",
        "c2st_attention_auc",
        "count_nats_excess",
        "muon_nats_excess",
        "radius_variance_ratio",
        "energy_above_1_tev_ratio",
        "energy_above_10_tev_ratio",
        "energy_above_30_tev_ratio",
        "radius_above_100_m_ratio",
        "energy_below_cut_share",
        "train_cpu_s",
        "events_per_s",
        "num_parameters",
    ),
    (Row("likelihood", LIKELIHOOD), Row("WGAN", WGAN)),
    _FLOOR,
)

_BF16_COLUMNS = tuple(name for name in QUALITY.columns if name not in ("num_parameters", "train_cpu_s", "events_per_s"))


def _rounded(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple(replace(run, name=f"{run.name}-bf16", bf16=True) for run in runs)


BF16 = replace(
    QUALITY,
    key="bf16",
    title="In bfloat16",
    question="What do weights and rows in bfloat16 change, in training? The seeds 10-12 of the table above, and their"
    " range; all events are generated in float32.",
    columns=_BF16_COLUMNS,
    rows=tuple(
        Row(f"{label}{precision}", of_precision)
        for label, runs in (("likelihood", LIKELIHOOD[:3]), ("WGAN", WGAN[:3]))
        for precision, of_precision in ((", float32", runs), (", bf16", _rounded(runs)))
    ),
)
"""Precisions beside each other: `--precision`."""


def _tuned(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple(replace(run, name=f"tuning-{run.name}", tuning=True) for run in runs)


TUNING = replace(
    QUALITY,
    key="tuning",
    title="Tuning",
    question="Training seeds 0-4, on primaries of their own: for the choice of limits and defaults, never quoted.",
    rows=(
        Row("likelihood", _tuned(_seeds(_likelihood, _TUNING_SEEDS))),
        Row("WGAN", _tuned(_seeds(_wgan, _TUNING_SEEDS))),
    ),
    floor=_tuned((_FLOOR,))[0],
)

# ---- Hard cases.

_HEAVY_STEPS = 1000
_heavy = Run("heavy", "likelihood", steps=_HEAVY_STEPS, source=Source("heavy"), events=_HARD_EVENTS)
HEAVY = Table(
    "heavy",
    "Hard case: events of thousands of muons",
    f"Does the likelihood model learn the `heavy` preset in {_HEAVY_STEPS:,} steps, from at most 2,000 muons of an"
    " event? 200 steps of the WGAN would take twice as long and be far from the floor.",
    (*_DISTANCES, "c2st_auc", "count_nats_excess", "train_cpu_s"),
    (Row("likelihood", _seeds(_heavy)),),
    _floor("heavy", Source("heavy")),
)

_TEN_DEPTHS = Source(changes=(("depth_steps", 10),))
_SHOWER_STEPS = 300
_showers = Run("showers-none", "likelihood", steps=_SHOWER_STEPS, source=_TEN_DEPTHS, events=_HARD_EVENTS)
SHOWERS = Table(
    "showers",
    "Hard case: ten rows of one shower",
    "Do correlated rows harm the training of the likelihood model, shuffled or as neighbours in a batch"
    f" ({_SHOWER_STEPS} steps)? All are judged by independent rows at the same ten depths.",
    (*_DISTANCES, "c2st_auc"),
    (
        Row("independent rows", _seeds(_showers)),
        *(
            Row(
                rows,
                _seeds(replace(_showers, name=rows.replace(" ", "-"), source=Source(rows=rows), judged_by=_TEN_DEPTHS)),
            )
            for rows in ("showers shuffled", "showers in order")
        ),
    ),
    _floor("ten-depths", _TEN_DEPTHS),
)

_head = Run("head", "count head", steps=1000, c2st_events=0, events=2 * _HARD_EVENTS)

_no_empties = replace(_head, name="no-empties-plain", source=Source(empties=False), judged_by=Source())
_TRUNCATED = {"network": {"zero_truncated_counts": True}}
NO_EMPTIES = Table(
    "no-empties",
    "Hard case: files without empty events",
    "The training rows without muons are missing, as Muonitron leaves them out. Is what is generated still right, empty"
    " events included (1,000 steps of the head alone)? Judged by all rows.",
    _COUNTS,
    (
        Row("all rows, plain likelihood", _seeds(replace(_no_empties, name="no-empties-all", source=Source()))),
        Row("plain likelihood", _seeds(_no_empties)),
        Row("zero-truncated", _seeds(replace(_no_empties, name="no-empties-truncated", settings=_TRUNCATED))),
    ),
    _floor("counts", Source(), events=_head.events),
)

_corsika = Run("corsika-none", "likelihood", steps=200, source=Source(CORSIKA_FILE), c2st_events=0)


def _begun(run: Run) -> tuple[Run, ...]:
    """Run for each seed, from the weights of the likelihood model of the same seed."""
    return tuple(replace(one, start_from=f"likelihood-s{one.seed}") for one in _seeds(run))


CORSIKA = Table(
    "corsika",
    "Hard case: CORSIKA showers for fine-tuning",
    f"What do {_corsika.steps} steps on the 11 CORSIKA showers of tests/data change, from the weights of the likelihood"
    " models above and from none? The showers that are trained on are those that are judged: there are no others."
    " Mean N is divided by that of the showers.",
    tuple(name for name in _DISTANCES if name != "conditional_log10_energy_w1"),
    (
        Row("`bench` weights, before", _begun(replace(_corsika, name="corsika-before", steps=0))),
        Row("`bench` weights, after", _begun(replace(_corsika, name="corsika-tuned"))),
        Row("from none", _seeds(_corsika)),
    ),
)
FORGOTTEN = Table(
    "forgotten",
    "What fine-tuning forgets",
    "The same weights on `bench` events, before and after the steps on CORSIKA showers.",
    _DISTANCES,
    (
        Row("before", LIKELIHOOD[: len(_HARD_SEEDS)]),
        Row("after", _begun(replace(_corsika, name="forgotten", judged_by=Source(), events=_EVENTS, generations=1))),
    ),
    _FLOOR,
)

TABLES = (QUALITY, HEAVY, SHOWERS, NO_EMPTIES, CORSIKA, FORGOTTEN)


QUICK = "quick-"
_QUICK_STEPS, _QUICK_EVENTS = 50, 4000


def quick(tables: tuple[Table, ...]) -> tuple[Table, ...]:
    """Tables with runs of some seconds: a test that everything works, not of quality."""
    return tuple(
        replace(
            table,
            rows=tuple(replace(row, runs=tuple(_quick(run) for run in row.runs)) for row in table.rows),
            floor=_quick(table.floor) if table.floor else None,
        )
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
    by_name = {run.name: run for table in (*TABLES, TUNING, BF16) for run in table.runs}
    return _quick(by_name[name.removeprefix(QUICK)]) if name.startswith(QUICK) else by_name[name]


def _quick(run: Run) -> Run:
    return replace(
        run,
        name=QUICK + run.name,
        start_from=QUICK + run.start_from if run.start_from else "",
        steps=min(run.steps, _QUICK_STEPS),
        events=_QUICK_EVENTS,
        tail_events=min(run.tail_events, _QUICK_EVENTS),
        c2st_events=min(run.c2st_events, _QUICK_EVENTS),
    )
