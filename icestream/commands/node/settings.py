"""Settings of the nodes of a run: resolved on each, and the same on all."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.plan import plan_hash
from common.text import shown
from icestream.commands.run_session import resolved_config, with_absolute_paths
from services.config.root import Config, leaves

SHARED_BRANCHES = ("input", "workload", "seed", "epochs", "source", "stream", "trainer")
"""Branches of the configuration that must be the same on all nodes; the others are of a machine."""
OF_MACHINE = ("trainer.device", "trainer.threads")
"""Settings in those branches that may differ."""
OF_LISTS = ("fetcher.ranges", "fetcher.done")
"""Settings of other branches that determine the lists of files, which node 0 makes for all."""


def node_config(
    stored: Path, nodes: int, toml: Path | None, assignments: Sequence[str], flags: Mapping[str, Any]
) -> Config:
    """Configuration of a node, from that of the run in ``stored`` and what was given here. Raises BadInputError."""
    config = with_absolute_paths(resolved_config(stored, False, toml, assignments, dict(flags), nodes))
    refuse_outputs(config)
    return config


def refuse_outputs(config: Config) -> None:
    """Raise BadInputError if results are to be copied: the process for it is one of `icestream run`."""
    if config.outputs.destination:
        raise BadInputError(
            "outputs.destination: results of several nodes are in --shared; copy them from there with"
            " `icestream outputs --run-dir SHARED`"
        )


def require_inputs(config: Config) -> None:
    """Raise BadInputError if a local input is not seen by this machine: all its files would count as bad ones."""
    for text in config.input:
        if "://" in text or text.startswith("@"):
            continue
        folder = Path(text) if not glob.has_magic(text) else _before_magic(Path(text))
        if not folder.exists():
            raise BadInputError(
                f"{shown(text)}: {shown(str(folder))} is not on this machine; all nodes need the inputs"
            )


def require_same(first: Config, mine: Config) -> None:
    """Raise BadInputError that names a setting of this node that is not that of node 0."""
    theirs, own = _settings(first), _settings(mine)
    for key in sorted(theirs.keys() | own.keys()):
        if theirs.get(key) != own.get(key):
            raise BadInputError(
                f"{key} = {shown(str(own.get(key)))}, but node 0 has {shown(str(theirs.get(key)))}: give all nodes the"
                " same settings"
            )
    if first.local.trainers != mine.local.trainers:
        raise BadInputError(
            f"--trainers {mine.local.trainers}, but node 0 has {first.local.trainers}: give all nodes the same number"
        )


def build_of(config: Config) -> str:
    """Version of icestream, and what it makes of the plan: code may differ where settings don't."""
    return f"icestream {version('icestream')}, plan {plan_hash(config.stored_workload(), config.stream, config.seed)}"


def _settings(config: Config) -> dict[str, Any]:
    tree = config.model_dump(mode="json", include={*SHARED_BRANCHES, "fetcher"})
    return {
        key: value
        for key, value in leaves(tree)
        if key not in OF_MACHINE and (key in OF_LISTS or not key.startswith("fetcher."))
    }


def _before_magic(path: Path) -> Path:
    """Folder above the first part of the path that is a pattern."""
    while glob.has_magic(str(path)):
        path = path.parent
    return path
