"""compute-sanitizer on the hard cases of the segment operators: memory errors and races of their kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.processes import end_with_parent
from benchmarks.gpu.setting import Setting

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck")
FOUND_EXIT_CODE = 86


def run(setting: Setting, channel: Channel) -> None:
    """Rows: tool, its summary."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        channel.leave_out(
            "compute-sanitizer: not found in PATH or /usr/local/cuda/bin (it comes with the CUDA toolkit)"
        )
        return
    # Without torch's cache each tensor is an allocation of its own, so that memcheck sees where it ends.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    for number, tool in enumerate(TOOLS):
        limit_s = (channel.left_s - 2.0) / (len(TOOLS) - number)
        channel.say(f"{tool}, at most {limit_s:.0f} s")
        command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND_EXIT_CODE), "--print-limit", "5"]
        command += [sys.executable, "-m", "benchmarks.gpu.segment_cases", setting.device]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                preexec_fn=end_with_parent,
            )
        except subprocess.TimeoutExpired:
            channel.leave_out(f"{tool}: not through in {limit_s:.0f} s")
            continue
        output = done.stdout + done.stderr
        channel.row(tool=tool, summary=summary(output), exit_code=done.returncode)
        if done.returncode:
            channel.fail(f"{tool}: {summary(output)}; {first_finding(output)}")


def summary(output: str) -> str:
    """Summary lines of the tool and of the cases."""
    lines = re.findall(r"^=+ ((?:ERROR|RACECHECK|LEAK) SUMMARY: .*)$", output, re.MULTILINE)
    lines += re.findall(r"^(\d+ comparisons on .*)$", output, re.MULTILINE)
    return "; ".join(lines) or "no summary: " + (output.strip().splitlines() or ["no output"])[-1][:200]


def first_finding(output: str) -> str:
    """First line of the tool that names a problem and the one behind it, which says where."""
    lines = [line.lstrip("= ") for line in output.splitlines() if line.startswith("=========")]
    for number, line in enumerate(lines):
        if re.match(r"(Invalid|Error|Race|Program hit|Fatal|Potential)", line):
            return " ".join(lines[number : number + 2])[:300]
    return "see the tool's own output"
