"""Command of a workload. Imports nothing: `icestream --help` lists all of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

Section = Literal["Run", "Look", "Data", "Results", "Machines"]
"""Section of `icestream --help`."""


class Verb(NamedTuple):
    """Import path of a click command, its line in the list of commands, and the section of that line."""

    target: str
    """`module:attribute`, imported when the command is called."""
    summary: str
    section: Section = "Results"
