"""Inspection process: reads the footers of staged files. Libraries that parse untrusted files run here.

`python -m services.fetcher.staging.inspection_child` is started by services/fetcher/staging/inspection.py. It answers
each line on standard input, a JSON object with a path, by one JSON line on standard output; the first line defines
what to read.
It has a limit of memory, and of CPU time for each file; it has no secrets, and ends with the fetcher.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config import SourceConfig, StreamConfig
from common.errors import BadInputError
from common.input_errors import MachineError, machine_errno, one_line
from common.messages import shortened
from common.own_memory import limit_memory
from common.process import end_with_parent
from workloads import registry

if TYPE_CHECKING:
    from common.plan import Footer

CPU_S = 600
"""Most CPU time for one file: 10 million rows take 10 to 30 s."""


def main() -> None:
    """Answer until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the fetcher, which ends this process
    end_with_parent(signal.SIGKILL)
    _be_killed_first()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a library is no answer
    settings = json.loads(sys.stdin.readline())
    stream = StreamConfig.model_validate(settings["stream"])
    workload = registry.workload(settings["workload"]).schema.stored_as(SourceConfig.model_validate(settings["source"]))
    from common.files.bad_file import BadFileError  # with numpy and Arrow: after the environment was set
    from common.files.footers import read_footer
    from common.plan import SlotCapacity

    capacity = SlotCapacity(workload, stream)
    limit_memory(settings["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def answer(path: Path) -> dict[str, Any]:
        try:
            return {"footer": _packed(read_footer(path, workload, stream, capacity))}
        except BadFileError as error:
            return {"bad": shortened(str(error)), "rows": error.rows}
        except BadInputError as error:
            return {"bad": shortened(str(error))}
        except MachineError as error:
            return {"machine": shortened(str(error)), "errno": error.number}
        except (OSError, MemoryError) as error:
            return {"machine": shortened(f"{path}: {one_line(error)}"), "errno": machine_errno(error)}
        except Exception as error:  # noqa: BLE001  any error from the bytes of a file ends this file, not the run
            return {"bad": f"it can't be inspected: {error!r}"[:300]}

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        _limit_cpu_time()
        print(json.dumps(answer(Path(json.loads(line)["path"]))), file=answers, flush=True)


def _packed(footer: Footer) -> list[tuple[Any, ...]]:
    return [
        (group.rows, group.particles, [(s.first_row, s.rows, s.particles, s.batch_rows) for s in group.spans])
        for group in footer.row_groups
    ]


def _be_killed_first() -> None:
    """Make the kernel kill this process, not the fetcher, when the machine's memory runs out."""
    Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_cpu_time() -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(usage.ru_utime + usage.ru_stime) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
