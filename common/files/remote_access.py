"""Settings of the clients for remote files."""

from __future__ import annotations

from dataclasses import dataclass

from common.pelican.config import PelicanConfig
from common.pelican.tokens.config import TokenConfig


@dataclass(frozen=True)
class RemoteAccess:
    """Clients of federations, and the tokens that they use."""

    pelican: PelicanConfig
    token: TokenConfig
    transfers: int
    """Transfers at a time."""
    inputs: tuple[str, ...]
    """What is read, as the user named it: the scopes of a token follow from it."""
    output: str
    """Where outputs are written to; empty: nowhere."""
