from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

CODE = """
import sys
import numpy as np
from services.decoder.heap import share_one_heap

def is_on_the_heap(array):
    for line in open("/proc/self/maps"):
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= array.ctypes.data < end:
            return line.split()[-1] == "[heap]"

assert not is_on_the_heap(np.ones(6 << 20)), "48 MiB are a mapping of their own"
assert share_one_heap()
assert is_on_the_heap(np.ones(6 << 20))
"""


def test_large_arrays_live_on_the_heap_which_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_arrow_takes_its_memory_from_that_heap_unless_the_user_says_otherwise() -> None:
    code = "from services.decoder.heap import share_one_heap; share_one_heap()\n"
    code += "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    for chosen in ("", "mimalloc"):
        environment = {k: v for k, v in os.environ.items() if k != "ARROW_DEFAULT_MEMORY_POOL"}
        environment |= {"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
        assert done.stdout.strip() == (chosen or "system"), done.stderr
