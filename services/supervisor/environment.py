"""Environment of each child process: all variables that are no secrets, and the secrets that this child needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from common.private_path import TRUST_VARIABLE
from common.rank_variables import RANK_VARIABLES
from common.secret_variables import without_secret_variables
from services.config.root import ENVIRONMENT_PREFIX

if TYPE_CHECKING:
    from services.config.root import Config

_TOKENS = ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "_CONDOR_CREDS")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_STORES = ("AWS_*", "S3_*", "AZURE_*", "GOOGLE_*", "GCS_*", "FSSPEC_*", "HF_*", "GITHUB_*", "X509_*", "SSH_AUTH_SOCK")
"""Variables that fsspec's backends read."""
_WANDB = ("WANDB_*",)


def secrets_allowed(config: Config) -> dict[str, tuple[str, ...]]:
    """Names of the secrets passed to each service, where they are set (`*` at the end: all with this prefix).

    A decoder reads local files only: it gets none.
    """
    return {
        "fetcher": (*_TOKENS, *_PROXIES, *_STORES),
        "decoder": (),
        "trainer": (*_WANDB, *_PROXIES) if config.trainer.wandb.mode != "off" else (),
        "outputs": (*_TOKENS, *_PROXIES) if "://" in config.outputs.destination else (),
    }


def child_environment(environment: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Part of ``environment`` for a child: without the secrets not ``allowed`` and the variables of `icestream run`.

    The stored configuration contains the settings among them already, below the flags.
    """
    return {
        name: value
        for name, value in without_secret_variables(environment, allowed).items()
        if name == TRUST_VARIABLE or not (name.startswith(ENVIRONMENT_PREFIX) or name in RANK_VARIABLES)
    }
