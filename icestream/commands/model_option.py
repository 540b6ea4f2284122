"""Option --model, whose help names the models of every workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from common.options import RenamedOption
from workloads import registry

_HELP = (
    "Model to train ({models}); package.module:NAME: one of your own (docs/how-to/custom-model.md); none: only count"
    " the events, to measure the speed of the pipeline alone. It wins over the configuration file."
)


class _ModelOption(RenamedOption):
    """Option whose models are looked up only for its help: that imports every workload."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        models = "; ".join(f"{one.name}: {', '.join(one.models)}" for one in registry.every_workload())
        self.help = _HELP.format(models=models)
        return super().get_help_record(ctx)


def model_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Option --model."""
    return click.option("--model", cls=_ModelOption, former=["--generator"], metavar="NAME")(function)
