"""Command `icestream token`: acquisition of one token for all inputs of a run, or display of the one in use."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.errors import USER_ERROR_EXIT_CODE, BadInputError
from common.options import config_options, input_option, run_dir_option, token_file_option

if TYPE_CHECKING:
    from common.pelican.config import PelicanConfig
    from common.pelican.tokens.config import TokenConfig
    from common.pelican.tokens.device_flow import DeviceCode
    from common.pelican.tokens.generation import IssuerLookup, TokenGeneration

EXAMPLES = """\b
Examples:
  icestream token -i 'pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/testing/{range}/*.parquet'
  icestream token --run-dir runs/osdf                # for the inputs of a run
  icestream token --show --run-dir runs/osdf         # show the token in use; exit code 0 if it suffices, else 2

The token itself is never shown.
"""


@click.command(epilog=EXAMPLES)
@input_option
@click.option("--output", "outputs", multiple=True, help="Destination of outputs, a pelican:// URL. Repeatable.")
@click.option("--show", is_flag=True, help="Only show the token that a run would use, and if it suffices.")
@click.option("--scope", default="", help="Request these scopes instead of those needed for the inputs.")
@click.option("--issuer", help="https:// URL of the issuer, instead of the one named by the federation.")
@click.option("--client-id", help="Client id at the issuer, instead of an automatically registered one.")
@token_file_option
@run_dir_option
@config_options
def token(
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    show: bool,
    scope: str,
    issuer: str | None,
    client_id: str | None,
    token_file: Path | None,
    run_dir: Path,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Get one token for all inputs: approve in any browser, with the code that is shown.

    The token and its refresh token are stored in a file that only you can read; runs find it there and renew it.
    """
    from common.files.list_files import expand_lists
    from services.config.root import load_config

    flags = {"input": inputs or None, "token.issuer": issuer, "token.client_id": client_id, "token.file": token_file}
    config = load_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    if not config.input and not outputs:
        raise BadInputError(f"no input given, and none stored in {run_dir}: name what the token is for with -i/--input")
    urls = list(expand_lists(config.input))
    if show:
        sys.exit(USER_ERROR_EXIT_CODE if not asyncio.run(show_tokens(urls, outputs, config.token)) else 0)
    asyncio.run(get_tokens(urls, outputs, config.token, scope=scope, issuer_of=partial(ask_director, config.pelican)))


async def ask_director(config: PelicanConfig, url: str) -> TokenGeneration | None:
    """Issuer of tokens for a URL, from its federation."""
    from common.pelican.client import Federation, open_session
    from common.pelican.glob_walk import GlobWalk
    from common.pelican.tokens.generation import parse_token_generation
    from common.pelican.url import PelicanUrl

    place = PelicanUrl.parse(url.replace("{range}", "*"))
    async with open_session() as session:
        sources = await Federation(place.federation, config, session).sources(GlobWalk(place.path).root)
    return parse_token_generation(sources.token_generation)


async def show_tokens(inputs: Sequence[str], outputs: Sequence[str], config: TokenConfig) -> bool:
    """Print the token that would be used for each federation. True if all suffice, as far as known."""
    from common.pelican.tokens.errors import BadTokenError
    from common.pelican.tokens.scopes import needs
    from common.pelican.tokens.source import FoundTokens

    found = needs(inputs, outputs, storage_prefix=config.storage_prefix)
    if not found:
        click.echo("no input or output is in a federation: no token is needed")
    suffice = True
    for need in found:
        source = FoundTokens(need, config)
        click.echo(f"federation  {need.federation}\nneeded      {' '.join(map(str, need.scopes))}")
        try:
            click.echo(f"token       {await source.check()}")
        except BadTokenError as error:
            click.echo(f"token       {error}")
            suffice = False
        else:
            suffice = suffice and not source.not_covered()
    if found:
        click.echo("suffices    yes, as far as known" if suffice else "suffices    no: `icestream token` gets one")
    return suffice


async def get_tokens(
    inputs: Sequence[str],
    outputs: Sequence[str],
    config: TokenConfig,
    *,
    scope: str = "",
    issuer_of: IssuerLookup | None = None,
) -> None:
    """Get, store and describe one token for each federation."""
    from common.pelican.tokens.acquire import TokenRequest, acquire, wanted_scopes, who_grants
    from common.pelican.tokens.oauth import open_session
    from common.pelican.tokens.scopes import federation_of, needs
    from common.pelican.tokens.store import token_folder

    found = needs(inputs, outputs, storage_prefix=config.storage_prefix)
    if not found:
        raise BadInputError("no input or output is in a federation: no token is needed")
    async with open_session() as session:
        for need in found:
            url = next(url for url in (*inputs, *outputs) if federation_of(url) == need.federation)
            generation = await who_grants(url, config.issuer, issuer_of)
            if generation.base_path:  # the director overrides the configuration
                again = needs(inputs, outputs, storage_prefix=generation.base_path)
                need = next(other for other in again if other.federation == need.federation)
            wanted = TokenRequest(wanted_scopes(need, generation, scope), generation.issuer, config.client_id)
            click.echo(f"{need.federation}: asking {generation.issuer} for {' '.join(map(str, wanted.need.scopes))}")
            path, stored = await acquire(session, wanted, token_folder(os.environ), show=_show_code)
            click.echo(f"stored in {path}: {stored.claims.describe(time.time())}")
            if not stored.refresh_token:
                click.echo("the issuer gave nothing to renew it with: run `icestream token` again before it ends")


def _show_code(code: DeviceCode) -> None:
    from common.durations import duration

    click.echo(f"\nOpen this page in a browser, on any machine:\n\n    {code.url_with_code or code.url}\n")
    click.echo(f"and approve the code:\n\n    {code.user_code}\n")
    click.echo(f"Waiting for at most {duration(code.expires_in_s)}; Ctrl-C stops.\n")
