"""Runs a federation by hand until Ctrl-C: ``python -m tests.federation``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from .demo import add_chaos, fill, instructions, write_token
from .federation import Federation
from .xrootd import available

EXAMPLES = """
examples:
  python -m tests.federation                       real XRootD if it is installed, else light servers
  python -m tests.federation --light --port 8443   always the same port
  python -m tests.federation --fault 0.05          caches fail at random
  python -m tests.federation --dir demo-federation --caches 3
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.federation",
        description="Run a local Pelican federation with demo files until Ctrl-C.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dir", type=Path, help="a new directory for data, certificates and the token, kept at the end"
    )
    parser.add_argument("--caches", type=int, default=2, help="number of caches (default: 2)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--light", action="store_true", help="pure-Python data servers")
    kind.add_argument("--xrootd", action="store_true", help="real XRootD, or an error")
    parser.add_argument("--port", type=int, default=0, help="port of discovery and director (default: a free one)")
    parser.add_argument(
        "--fault", type=float, default=0.0, metavar="CHANCE", help="of each fault at each cache request"
    )
    options = parser.parse_args()
    if options.xrootd and not available():
        parser.error("XRootD is not installed: apt-get install xrootd-server xrootd-scitokens-plugins")
    if options.dir is not None and options.dir.exists():
        parser.error(f"--dir {options.dir} exists: name a new directory")
    if not 0 <= options.fault <= 1:
        parser.error(f"--fault {options.fault}: a probability, 0 to 1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleaned up as after Ctrl-C
    workdir = options.dir.resolve() if options.dir else Path(tempfile.mkdtemp(prefix="federation-"))
    xrootd = options.xrootd or (available() and not options.light)
    try:
        with Federation(
            workdir, caches=options.caches, kind="xrootd" if xrootd else "light", port=options.port
        ) as federation:
            fill(federation)
            if options.fault:
                add_chaos(federation, options.fault)
            sys.stdout.write(instructions(federation, write_token(federation)))
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        return 0
    finally:
        if options.dir is None:
            shutil.rmtree(workdir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
