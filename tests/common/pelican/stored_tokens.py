"""Tokens in the places where a token source looks."""

from __future__ import annotations

import os
from pathlib import Path

from token_places import SCOPE

from common.pelican.tokens.store import Client, StoredToken, save, token_folder, token_path

NAME = f"bt_u{os.geteuid()}"


def keep(environment: dict[str, str], token: str, refresh_token: str = "r0") -> Path:
    stored = StoredToken(
        access_token=token,
        refresh_token=refresh_token,
        scope=SCOPE,
        federation="osg-htc.org",
        token_endpoint="https://issuer.example/token",
        client=Client(issuer="https://issuer.example", client_id="me"),
    )
    path = token_path(token_folder(environment), stored)
    save(path, stored)
    return path
