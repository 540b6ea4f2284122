"""Runs a federation by hand until Ctrl-C: ``python -m tests.federation``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from .demo import add_chaos, fill, instructions, write_token
from .federation import Federation, Kind
from .xrootd import available


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.federation",
        description="Run a local Pelican federation with demo files until Ctrl-C: real XRootD if it is installed.",
    )
    parser.add_argument("--light", action="store_true", help="pure-Python data servers, always")
    parser.add_argument(
        "--fault", type=float, default=0.0, metavar="CHANCE", help="of each fault at each cache request"
    )
    options = parser.parse_args()
    if not 0 <= options.fault <= 1:
        parser.error(f"--fault {options.fault}: a probability, 0 to 1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleaned up as after Ctrl-C
    kind: Kind = "xrootd" if available() and not options.light else "light"
    try:
        with (
            tempfile.TemporaryDirectory(prefix="federation-") as workdir,
            Federation(Path(workdir), caches=2, kind=kind) as federation,
        ):
            fill(federation)
            if options.fault:
                add_chaos(federation, options.fault)
            sys.stdout.write(instructions(federation, write_token(federation)))
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
