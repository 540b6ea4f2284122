"""One name for one thing on the command line; former names work and are not shown."""

from __future__ import annotations

import click
import pytest

from common.options import OutputPath
from icestream.cli import cli

CONTEXT = click.Context(cli)
COMMANDS = [(name, command) for name in cli.list_commands(CONTEXT) if (command := cli.get_command(CONTEXT, name))]


def test_a_required_output_is_o_or_output_everywhere_and_out_still_works() -> None:
    found = 0
    for name, command in COMMANDS:
        for option in command.params:
            if isinstance(option, click.Option) and {"--out", "--output", "-o"} & set(option.opts):
                assert "--output" in option.opts, name
                assert "--out" not in option.opts, name
                found += option.required
    assert found == 4


def test_every_output_is_checked_before_any_work() -> None:
    merge = cli.get_command(CONTEXT, "tensorboard").get_command(CONTEXT, "merge")  # type: ignore[union-attr]
    found = {
        name
        for name, command in [*COMMANDS, ("merge", merge)]
        for parameter in command.params
        if (parameter.name == "out" or "--output" in parameter.opts) and isinstance(parameter.type, click.Path)
        if isinstance(parameter.type, OutputPath)
    }
    assert found == {"convert", "evaluate", "export", "generate", "merge", "predict", "seeds", "simulate"}


@pytest.mark.parametrize("name", ["export", "predict", "generate", "seeds"])
def test_the_former_name_of_an_output_is_parsed_and_not_in_the_help(name: str) -> None:
    command = dict(COMMANDS)[name]
    context = click.Context(command)
    parser = command.make_parser(context)
    values, _, _ = parser.parse_args(["--out", "x"])
    assert values["out"] == "x"
    assert "--out," not in command.get_help(context)
    assert "--out " not in command.get_help(context)


def test_the_former_name_of_a_model_is_parsed_and_not_in_the_help() -> None:
    command = dict(COMMANDS)["run"]
    context = click.Context(command)
    values, _, _ = command.make_parser(context).parse_args(["--generator", "wgan"])
    assert values["model"] == "wgan"
    assert "--generator" not in command.get_help(context)


ABOUT_A_RUN = ("status", "logs", "ranges", "doctor", "plan", "stop")


@pytest.mark.parametrize("name", ABOUT_A_RUN)
@pytest.mark.parametrize("given", [["x"], ["--run-dir", "x"], ["--run-dir=x"]])
def test_a_command_about_a_run_takes_it_as_its_argument_and_the_option_of_run_is_understood(
    name: str, given: list[str]
) -> None:
    command = dict(COMMANDS)[name]
    context = command.make_context(name, [*given])
    assert str(context.params["run_dir"]) == "x"
    assert not [option for option in command.params if "--run-dir" in option.opts], "not in the help"


def test_logs_of_one_service_are_found_with_either_spelling_of_the_run() -> None:
    for given in (["x", "trainer"], ["--run-dir", "x", "trainer"], ["trainer", "-n", "3", "--run-dir", "x"]):
        parameters = dict(COMMANDS)["logs"].make_context("logs", given).params
        assert (str(parameters["run_dir"]), parameters["service"]) == ("x", "trainer")


@pytest.mark.parametrize("name", ["status", "logs", "stop"])
def test_a_missing_run_is_told_with_the_command_that_lists_runs(name: str) -> None:
    with pytest.raises(click.UsageError, match=r"Missing argument 'RUN'\. `icestream ls runs/` lists runs"):
        dict(COMMANDS)[name].make_context(name, [])


def test_every_device_may_be_one_of_several_gpus() -> None:
    devices = [(name, option) for name, command in COMMANDS for option in command.params if option.name == "device"]
    assert {name for name, _ in devices} >= {"run", "doctor", "trainer", "evaluate", "generate", "predict"}
    for name, option in devices:
        assert not isinstance(option.type, click.Choice), name
        assert option.help == "auto, cpu, cuda or cuda:N.", name
