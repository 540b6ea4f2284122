"""TensorBoard behind a path that only its starter knows: each user of a machine reaches the ports of all others.

`python -m icestream.commands.tensorboard.server` takes TensorBoard's own arguments, and the path from the environment.
"""

from __future__ import annotations

import os
import sys

from tensorboard import main as tensorboard_main
from tensorboard import manager

from icestream.commands.tensorboard.command import PREFIX_VARIABLE


def main() -> None:
    """Serve until Ctrl-C."""
    sys.argv += ["--path_prefix", os.environ.pop(PREFIX_VARIABLE)]
    manager.write_info_file = lambda info: None  # a file in /tmp with the path, which everybody may read
    tensorboard_main.run_main()


if __name__ == "__main__":
    main()
