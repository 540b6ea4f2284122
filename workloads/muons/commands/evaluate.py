"""`icestream evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from common.options import absolute, config_options, input_option, token_file_option
from common.user_path import user_path
from workloads.base.front import Front
from workloads.muons.evaluation.settings import NATURAL_FLUX, EvaluationRequest
from workloads.muons.simulator.config import PRESETS

MISSED_EXIT_CODE = 1


@click.command(epilog="Example: icestream evaluate runs/demo -i demo-validation --simulated bench")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@input_option
@click.option(
    "--simulated",
    type=click.Choice(list(PRESETS)),
    help="The files were written by `icestream simulate --preset` of that name: floors are then found with real events "
    "drawn once more for the same primaries. Without: between disjoint showers.",
)
@click.option("--simulate", type=click.Choice(list(PRESETS)), help="Draw the real events, too; no files are read.")
@click.option(
    "--events", type=click.IntRange(min=0), default=40_000, show_default=True, help="Most events, from all over the "
    "files. 0: all. Floors shrink with their square root."
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same report.")
@click.option(
    "--weights",
    metavar="COLUMN",
    help=f"Parquet column that says how much each event counts. {NATURAL_FLUX}: the natural flux, of simulated events.",
)
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the report. Default: "
    "evaluation/ in the run directory, or beside the checkpoint.")  # fmt: skip
@click.option(
    "--thresholds",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with lines such as `count_tv = 0.02`. The exit code is 1 if one is not kept.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="CPU threads of torch. The networks are small: more of them gain little, and lose much on a busy machine.",
)
@click.option("--bootstraps", type=click.IntRange(min=2), default=100, show_default=True, help="For the errors.")
@click.option(
    "--c2st-epochs", type=click.IntRange(min=1), default=12, show_default=True, help="Of the classifiers, which take "
    "most of the time."
)  # fmt: skip
@token_file_option
@config_options
@click.pass_obj
def evaluate(
    front: Front,
    checkpoint: Path,
    inputs: tuple[str, ...],
    simulated: str | None,
    simulate: str | None,
    events: int,
    seed: int,
    weights: str | None,
    output: Path | None,
    thresholds: Path | None,
    device: str,
    threads: int,
    bootstraps: int,
    c2st_epochs: int,
    token_file: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Compare generated with real muon bundles: metrics with their floors, plots, and an HTML report.

    CHECKPOINT: a file, or a run directory (its best checkpoint). Events are generated for the primaries of real ones;
    every distance is shown with its floor, the distance between two samples of real events. Writes report.html,
    report.json and the plots. The files should not be among those of the training.
    """
    from workloads.base.report.text import lines, missed_lines
    from workloads.muons.evaluation.evaluate import run_evaluation  # torch and matplotlib
    from workloads.muons.evaluation.words import WORDS

    wanted = EvaluationRequest(
        checkpoint=checkpoint,
        inputs=absolute(inputs),
        simulated=simulated or "",
        simulate=simulate or "",
        events=events,
        seed=seed,
        weights=weights or "",
        output=output,
        thresholds=thresholds,
        device=device,
        threads=threads,
        bootstraps=bootstraps,
        c2st_epochs=c2st_epochs,
    )
    if token_file is not None:
        assignments = (*assignments, f"token.file={user_path(token_file).absolute()}")
    outcome, folder = run_evaluation(
        front, wanted, toml=toml, assignments=assignments, say=lambda text: click.echo(text, err=True)
    )
    click.echo("\n".join(lines(outcome.report, WORDS)))
    for warning in outcome.warnings:
        click.echo(f"WARNING: {warning}")
    for line in missed_lines(outcome.missed):
        click.echo(line, err=True)
    click.echo(f"report: {folder / 'report.html'}")
    if outcome.missed:
        raise SystemExit(MISSED_EXIT_CODE)
