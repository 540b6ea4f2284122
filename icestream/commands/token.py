"""Command `icestream token`: the token that a run would use for its inputs, and whether it suffices."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from common.errors import USER_ERROR_EXIT_CODE, BadInputError
from common.options import config_options, input_option, run_dir_option, token_file_option

EXAMPLES = """\b
Examples:
  icestream token -i 'pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/testing/{range}/*.parquet'
  icestream token --run-dir runs/osdf                # for the inputs of a run
  icestream token --run-dir runs/osdf && icestream run --run-dir runs/osdf

The exit code is 0 if the token suffices, as far as known, else 2. The token itself is never shown.
"""


@click.command(epilog=EXAMPLES)
@input_option
@click.option("--output", "outputs", multiple=True, help="Destination of outputs, a pelican:// URL. Repeatable.")
@token_file_option
@run_dir_option
@config_options
def token(
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    token_file: Path | None,
    run_dir: Path,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Show the token that a run would use: its scopes, the servers that get it, the time left, and if it suffices.

    Tokens are got by other programs: the command is shown where one is missing. Runs read them again when they change.
    """
    from common.files.local import expand_lists
    from common.pelican.answers import BadTokenError
    from common.pelican.token_claims import how_to_get, needs
    from common.pelican.tokens import FoundTokens
    from services.config.root import load_config

    flags = {"input": inputs or None, "token.file": token_file}
    config = load_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    if not config.input and not outputs:
        raise BadInputError(f"no input given, and none stored in {run_dir}: name what the token is for with -i/--input")
    found = needs(list(expand_lists(config.input)), outputs, storage_prefix=config.token.storage_prefix)
    if not found:
        click.echo("no input or output is in a federation: no token is needed")
    all_suffice = True
    for need in found:
        source = FoundTokens(need, config.token)
        click.echo(f"federation  {need.federation}\nneeded      {' '.join(map(str, need.scopes))}")
        try:
            text = source.check()
            suffices = not source.not_covered()
        except BadTokenError as error:
            text, suffices = str(error), False
        get = how_to_get(need.federation, need.path, writes=need.writes)
        click.echo(f"token       {text}\nsuffices    {'yes, as far as known' if suffices else f'no: {get}'}")
        all_suffice = all_suffice and suffices
    if not all_suffice:
        sys.exit(USER_ERROR_EXIT_CODE)
