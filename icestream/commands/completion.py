"""Command `icestream completion`: completion of commands and options by the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_ICESTREAM_COMPLETE"
EXAMPLES = """\b
Examples, once (each new shell then completes with Tab):
  icestream completion bash >> ~/.bashrc
  icestream completion zsh >> ~/.zshrc
  icestream completion fish > ~/.config/fish/completions/icestream.fish
"""


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the lines that let SHELL complete icestream's commands and options."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "icestream", VARIABLE).source())
