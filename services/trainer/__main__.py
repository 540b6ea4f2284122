"""`torchrun --nproc-per-node N -m services.trainer …` is `icestream trainer …`, N times."""

import sys

from services.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "trainer")
    main()
