"""`torchrun torchrun_worker.py PADDING icestream run …`: `icestream run` whose services are forks of it, see zygote.py.

Importing is most of what a short run costs, and each start of a node would import everything four times.
"""

from __future__ import annotations

import importlib
import os
import sys

from zygote import PRELOADED, run_command

if __name__ == "__main__":
    if os.environ["LOCAL_RANK"] == "0":  # the others have nothing to do
        for module in PRELOADED:
            importlib.import_module(module)
    run_command([sys.executable, "-m", *sys.argv[2:]])
