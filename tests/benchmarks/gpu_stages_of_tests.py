"""Stages for the tests of benchmarks/gpu: what can go wrong in one. Run in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.setting import Setting


def run(setting: Setting, channel: Channel) -> None:
    """Does what the device's name says, after a row."""
    what, _, folder = setting.device.partition(":")
    channel.row(what=what)
    match what:
        case "raises":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")
        case "asks":
            raise ValueError("first line\nlast line")
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "leaves":
            os._exit(7)
        case "hangs":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(folder, "child").write_text(str(child.pid))
            channel.row(what="waits")
            child.wait()
        case "warns":
            import logging

            logging.getLogger("services.trainer").warning("copies will be %s", "slow")
            logging.getLogger("elsewhere").warning("something else")
        case "checks":
            channel.fail("a value differs")
            channel.leave_out("another check: no time was left")
