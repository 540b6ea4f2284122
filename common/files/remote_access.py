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
    """Inputs as given by the user: the scopes of a token follow from them."""
    output: str
    """Destination of outputs; empty: none."""
