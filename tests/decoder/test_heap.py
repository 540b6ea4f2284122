from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import numpy as np
from services.decoder.heap import keep_one_heap

def is_on_the_heap(array):
    for line in open("/proc/self/maps"):
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= array.ctypes.data < end:
            return line.split()[-1] == "[heap]"

assert not is_on_the_heap(np.ones(6 << 20)), "48 MiB are a mapping of their own"
assert keep_one_heap()
assert is_on_the_heap(np.ones(6 << 20))
"""


def test_large_arrays_live_on_the_heap_which_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
