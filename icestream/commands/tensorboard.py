"""Command `icestream tensorboard`: TensorBoard behind a path that only its starter knows.

Each user of a machine reaches the ports of all others. `python -m icestream.commands.tensorboard` is that server: it
takes TensorBoard's own arguments, and the path from the environment.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import click

from common.errors import BadInputError
from common.process import python_command

PREFIX_VARIABLE = "_ICESTREAM_TENSORBOARD_PATH"
"""Variable with the path of the address: others can read a process's arguments, but not its environment."""
EVENT_FILE = "events.out.tfevents."

EXAMPLES = """\b
Examples:
  icestream tensorboard runs/demo
  icestream tensorboard runs --port 6007            # all runs below
"""


@click.command(epilog=EXAMPLES)
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True, help="Port. 0: any free one.")
def tensorboard(run_dirs: tuple[Path, ...], port: int) -> None:
    """Start TensorBoard on runs, or on folders with many below, for this machine only. Ctrl-C ends it.

    The address has a random part, without which other users of the machine see nothing.
    """
    places = [str(path) for path in run_dirs]
    for path in run_dirs:
        if not path.is_dir():
            raise BadInputError(f"{path}: no such directory; name run directories, or folders of them")
    if not any(file.is_file() for path in run_dirs for file in path.rglob(f"{EVENT_FILE}*")):
        raise BadInputError(f"{', '.join(places[:5])}: no TensorBoard files ({EVENT_FILE}*) there")
    if len(places) == 1:
        where = ["--logdir", places[0]]
    else:
        if odd := [place for place in places if "," in place or ":" in place]:
            raise BadInputError(f"{odd[0]}: TensorBoard takes no path with a comma or colon; name the folder above")
        where = ["--logdir_spec", ",".join(f"{place}:{place}" for place in places)]
    prefix = f"/{secrets.token_urlsafe(16)}"
    if port:
        address = f"http://localhost:{port}{prefix}/#custom_scalars"
        click.echo(f"losses first, a value and its floor in one chart: {address}", err=True)
    server = python_command("icestream.commands.tensorboard", *where, "--host", "127.0.0.1", "--port", str(port))
    os.execve(server[0], server, os.environ | {PREFIX_VARIABLE: prefix})


def serve() -> None:
    """Serve until Ctrl-C."""
    from tensorboard import main as tensorboard_main
    from tensorboard import manager

    sys.argv += ["--path_prefix", os.environ.pop(PREFIX_VARIABLE)]
    manager.write_info_file = lambda info: None  # a file in /tmp with the path, which everybody may read
    tensorboard_main.run_main()


if __name__ == "__main__":
    serve()
