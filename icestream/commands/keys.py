"""Command `icestream keys`: certificates for a trainer over tcp."""

from __future__ import annotations

from pathlib import Path

import click

EXAMPLES = """\b
Examples:
  icestream keys keys                                 # for a fetcher and one trainer
  icestream keys keys --client h200 --client a100     # later: more trainers, the fetcher's key stays
"""


@click.command(epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--client", "clients", multiple=True, default=("trainer",), show_default=True, help="A trainer's name. Repeatable."
)
def keys(folder: Path, clients: tuple[str, ...]) -> None:
    """Make the certificates for mutual authentication of the fetcher and a trainer on another machine: one over tcp

    always needs them, on loopback too.
    DIR gets the fetcher's key pair, and for each client a folder DIR/for-NAME to be copied to the trainer's machine.
    Only clients with a public key in DIR/clients are admitted. Existing files are not overwritten.
    """
    from common.transport.keys import make_client_keys, make_server_keys  # zmq takes a moment

    if make_server_keys(folder):
        click.echo(f"{folder}: new key of the fetcher. Start it with --set transport.keys={folder}")
    else:
        click.echo(f"{folder}: has a fetcher's key already; it stays")
    for name in clients:
        bundle = make_client_keys(folder, name)
        click.echo(
            f"{bundle}: copy this folder to the trainer's machine, over a private channel, delete it here, "
            f"and start the trainer there with --connect tcp://HOST:PORT --keys {bundle.name}"
        )
        click.echo(f"{folder / 'clients' / name}.key: lets that trainer in; delete it to lock it out")
