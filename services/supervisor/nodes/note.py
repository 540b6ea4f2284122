"""Note of a node for the others: its attempt, its beat, and how it ended. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

NodeState = Literal["starting", "gathering", "running", "ended"]


class NodeNote(BaseModel):
    """Content of the note, replaced once a second."""

    model_config = ConfigDict(frozen=True)

    attempt: int
    token: str
    """Random name of the process."""
    node: int
    nodes: int
    host: str
    pid: int
    since: str
    run_dir: str = ""
    """Its own run directory, on its host."""
    beat: int = 0
    """A number that grows while the process runs."""
    state: NodeState = "starting"
    """`gathering`: it is ready, and waits for the others."""
    accepted: tuple[str, ...] = ()
    """Tokens of the nodes of this attempt, in their order, once node 0 runs; only its note has them."""
    settings: str = ""
    """Digest of the run's config.json in the shared folder, of node 0."""
    build: str = ""
    """Version of icestream and plan hash, of node 0: they must be the same everywhere."""
    exit_code: int = 0
    """Exit code, once it has ended."""
    text: str = ""
    """Reason of its end, if that is an error."""

    def __str__(self) -> str:
        return f"node {self.node} on {self.host} since {self.since} (process {self.pid})"
