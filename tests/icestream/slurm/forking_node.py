"""`python forking_node.py icestream node …`: an `icestream node` that forks its processes (`zygote.py`).

Importing is half of what a start of a node costs, and each job has several.
"""

from __future__ import annotations

import importlib
import sys

from zygote import PRELOADED, run_command

if __name__ == "__main__":
    for module in PRELOADED:
        importlib.import_module(module)
    run_command(sys.argv)
