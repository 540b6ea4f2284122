"""Options that several commands share: of a model, and of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from common import options
from common.paths import user_path
from workloads import registry


class _ModelOption(click.Option):
    """Option whose models are looked up only for its help: that imports every workload."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        models = "; ".join(f"{one.name}: {', '.join(one.models)}" for one in registry.every_workload())
        self.help = (
            f"Model to train ({models}); package.module:NAME: one of your own (docs/how-to/custom-model.md); none: only"
            " count the events, to measure the speed of the pipeline alone."
        )
        return super().get_help_record(ctx)


model_option = click.option("--model", cls=_ModelOption, metavar="NAME")

run_options = options.together(
    options.input_option,
    options.ranges_option,
    options.done_option,
    click.option(
        "--workload", help="Content of the files: muons, …. Default: detected from their columns, else muons."
    ),
    click.option("--decoders", metavar="N|auto", help="Decoder processes; auto: as many as the load needs."),
    click.option("--trainers", type=int, help="Trainer processes that train together, one per GPU."),
    options.device_option(),
    click.option("--start-from", metavar="CHECKPOINT", help="Start with the weights of another run: fine-tuning."),
    click.option("--epochs", type=int, help="Number of passes over the inputs. 0: without end."),
    click.option("--max-steps", type=int, help="Stop after this many optimiser steps in all. 0: no limit."),
    model_option,
    options.profile_option,
    click.option("--seed", type=int, help="Seed of the order of the data and of the weights."),
    click.option("--strict/--no-strict", default=None, help="Stop at the first bad file."),
    options.token_file_option,
    options.config_options,
)
"""Options of `icestream run` that set a run's configuration."""


def run_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of run_options by their keys, without -c and --set; None: not given."""
    done, token_file = given["done"], given["token_file"]
    return {
        "input": options.absolute(given["inputs"]) or None,
        "workload": given["workload"],
        "fetcher.ranges": given["ranges"],
        "fetcher.done": done and user_path(str(done)).absolute(),
        "local.decoders": given["decoders"],
        "local.trainers": given["trainers"],
        "trainer.device": given["device"],
        "trainer.start_from": given["start_from"],
        "epochs": given["epochs"],
        "trainer.max_steps": given["max_steps"],
        "trainer.model": given["model"],
        "trainer.profile_steps": given["profile_steps"],
        "seed": given["seed"],
        "fetcher.strict": given["strict"],
        "token.file": user_path(token_file).absolute() if token_file else None,
    }
