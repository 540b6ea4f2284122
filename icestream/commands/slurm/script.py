"""Text of a Slurm job script, from a template and the user's values. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError
from common.text import shown, without_secrets

TIME = re.compile(r"\d+(-\d+)?(:\d+){0,2}|UNLIMITED")
"""Slurm's times: minutes, minutes:seconds, hours:minutes:seconds, days-hours, …"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class SlurmJob:
    """Values of a job script."""

    name: str
    nodes: int
    possible: Sequence[int]
    """Numbers of nodes on which the run can go on, in order."""
    gpus: int
    """GPUs of each node."""
    time: str
    shared: Path
    run_dir: Path
    program: Sequence[str]
    """Command of icestream."""
    options: Sequence[str]
    """Options of `icestream run`."""

    def script(self, template: str) -> str:
        """Template with each `{{field}}` replaced, every text of the user quoted for bash.

        Raises BadInputError for a value that a script can't hold, or must not.
        """
        if not NAME.fullmatch(self.name):
            raise BadInputError(f"--name {shown(self.name)}: letters, digits, dots, hyphens and underscores only")
        if not TIME.fullmatch(self.time):
            raise BadInputError(f"--time {shown(self.time)}: expected Slurm's form, for example 24:00:00 or 2-12")
        for text in (str(self.shared), str(self.run_dir), *self.program, *self.options):
            check_text(text)
        values = {
            "name": self.name,
            "nodes": str(self.nodes),
            "possible": " ".join(map(str, self.possible)),
            "gpus": f"#SBATCH --gpus-per-node={self.gpus}" if self.gpus else "# No GPUs were asked for.",
            "time": self.time,
            "shared": shlex.quote(str(self.shared)),
            "run_dir": shlex.quote(str(self.run_dir)),
            "program": shlex.join(self.program),
            "options": shlex.join(self.options),
        }
        return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def check_text(text: str) -> None:
    """Raise BadInputError for a text that may not be in a job script."""
    if "\0" in text:
        raise BadInputError(f"{shown(text)}: no argument has a zero byte in it")
    if without_secrets(text) != text:
        raise BadInputError(
            f"{shown(text)}: a secret would be in the script, and in the command lines that all users of a machine see:"
            " put the input into a file for you only, and name it as -i @FILE"
        )
