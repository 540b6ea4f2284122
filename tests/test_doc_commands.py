"""Commands of the README and the pages: verbs, options, settings and files that they name exist."""

from __future__ import annotations

import re

import click
import h5py  # noqa: F401  starts a process when it is first imported, which these tests may not
import pytest
from doc_examples import ROOT, CommandLine, command_lines, pages

from icestream.cli import cli
from services.config.root import known_keys

COMMANDS = [command for page in pages() for command in command_lines(page, "icestream")]
OWN = ("source.fields.", "source.columns.", "trainer.own.")
"""Tables with names of the user."""
MAKE = [command for page in pages() for command in command_lines(page, "make")]


def parsed(command: CommandLine) -> None:
    """Parse a command as `icestream` does, down to its last subcommand, and run nothing. Raises click's errors."""
    group: click.Command = cli
    words = list(command.words[1:])
    context = click.Context(cli)
    while isinstance(group, click.Group) and words and not words[0].startswith("-"):
        name, group_or_none, words = group.resolve_command(context, words)
        assert group_or_none is not None
        group = group_or_none
        context = click.Context(group, parent=context, info_name=name, **group.context_settings)
    group.make_parser(context).parse_args(words)  # unknown options, missing arguments of options


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 100
    assert len(MAKE) > 4


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.place)
def test_a_command_of_the_pages_has_a_verb_and_options_that_exist(command: CommandLine) -> None:
    try:
        parsed(command)
    except click.UsageError as error:
        pytest.fail(f"{command.place}: {' '.join(command.words)}: {error.format_message()}")


def is_one_setting(key: str) -> bool:
    """True for a key, or its last part if only one key ends with it, as `--set` takes them."""
    found = [known for known in known_keys() if known.endswith(f".{key}")]
    return key.startswith(OWN) or key in known_keys() or len(found) == 1


def test_settings_of_the_pages_commands_exist_and_are_not_ambiguous() -> None:
    wrong = {}
    for command in COMMANDS:
        pairs = zip(command.words, command.words[1:], strict=False)
        for key in (value.partition("=")[0] for word, value in pairs if word == "--set"):
            if not is_one_setting(key):
                wrong[command.place] = key
    assert wrong == {}


def test_configurations_that_the_pages_commands_name_exist() -> None:
    named = {word for command in COMMANDS for word in command.words if re.fullmatch(r"configs/[\w-]+\.toml", word)}
    assert len(named) > 1
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_targets_that_the_pages_commands_make_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {command.words[1] for command in MAKE} - targets == set()
