"""Writes docs/reference/cli.md from the commands themselves: `make docs`. A test holds the page to them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import get_args

import click

from icestream.cli import VERBS, cli, imported, listed
from workloads import registry
from workloads.base.verb import Section

PAGE = Path(__file__).with_name("reference") / "cli.md"
WIDTH = 100

HEAD = """# Commands

Help of each command, as `icestream run --help` prints it, by the sections of `icestream --help`. Exit codes: 0 done, 2
an error that you can fix (one line on standard error, or one for each mistake), 130 interrupted, 1 an internal error,
or what the command names.

Completion with Tab, once: `icestream completion bash >> ~/.bashrc` (also zsh, fish). `icestream --version` names the
commit, Python, torch and CUDA.

This page is written by `make docs`.
"""


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for section in get_args(Section):
        parts.append(f"\n## {section}\n")
        for name in [name for name, _, where in listed() if where == section]:
            parts += _of_verb(name)
    return "".join(parts)


def _of_verb(name: str) -> Iterator[str]:
    """Part of a command; of a workloads' command, one for each of them that has it."""
    if name in VERBS:
        yield from _parts(imported(VERBS[name]), f"icestream {name}", f"icestream {name}")
        return
    for workload in registry.names():
        if verb := registry.verbs(workload).get(name):
            yield from _parts(imported(verb), f"icestream {name}", f"icestream {name} ({workload})")


def _parts(command: click.Command, name: str, title: str) -> Iterator[str]:
    command = copy(command)
    command._help_option = None  # click keeps that of the first call, which may have been without our context
    context = click.Context(command, info_name=name, terminal_width=WIDTH, **cli.context_settings)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"\n### {title}\n\n```text\n{text}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _parts(found, f"{name} {below}", f"{title} {below}")


if __name__ == "__main__":
    PAGE.write_text(page())
