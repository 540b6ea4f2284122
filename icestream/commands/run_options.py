"""Options of `icestream run` that set a run's configuration; `icestream node` has the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from common.options import (
    absolute,
    config_options,
    device_option,
    done_option,
    input_option,
    profile_option,
    ranges_option,
    token_file_option,
)
from common.user_path import user_path
from icestream.commands.model_option import model_option

_OPTIONS = (
    input_option,
    ranges_option,
    done_option,
    click.option(
        "--workload", help="Content of the files: muons, …. Default: detected from their columns, else muons."
    ),
    click.option("--decoders", metavar="N|auto", help="Decoder processes; auto: as many as the load needs."),
    click.option("--trainers", type=int, help="Trainer processes that train together, one per GPU."),
    device_option(),
    click.option("--start-from", metavar="CHECKPOINT", help="Start with the weights of another run: fine-tuning."),
    click.option("--epochs", type=int, help="Number of passes over the inputs. 0: without end."),
    click.option("--max-steps", type=int, help="Stop after this many optimiser steps in all. 0: no limit."),
    model_option,
    profile_option,
    click.option("--seed", type=int, help="Seed of the order of the data and of the weights."),
    click.option("--strict/--no-strict", default=None, help="Stop at the first bad file."),
    token_file_option,
    config_options,
)


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """All of them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def run_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the options, by their keys; None: not given. Without -c and --set."""
    done, token_file = options["done"], options["token_file"]
    return {
        "input": absolute(options["inputs"]) or None,
        "workload": options["workload"],
        "fetcher.ranges": options["ranges"],
        "fetcher.done": done and user_path(str(done)).absolute(),
        "local.decoders": options["decoders"],
        "local.trainers": options["trainers"],
        "trainer.device": options["device"],
        "trainer.start_from": options["start_from"],
        "epochs": options["epochs"],
        "trainer.max_steps": options["max_steps"],
        "trainer.model": options["model"],
        "trainer.profile_steps": options["profile_steps"],
        "seed": options["seed"],
        "fetcher.strict": options["strict"],
        "token.file": user_path(token_file).absolute() if token_file else None,
    }
