"""One of several trainers that train nothing: the real feed and the real audit, as a process.

    python tests/pipeline/rank.py trainer --run-dir RUN RANK RANKS

Its place is kept in `rank-R.json` after every batch, so that it goes on there when it is started again: what a common
checkpoint does for trainers that learn together. With HOLD_VARIABLE it stops (SIGSTOP) behind a batch.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from common.process import StopFlag
from services.config.root import load_config
from services.trainer.counting.copier import CountingCopier
from services.trainer.stream.audit import Audit
from services.trainer.stream.feed import Feed
from services.trainer.stream.microbatch_copy import Copiers
from services.trainer.stream.position import StreamPosition

HOLD_VARIABLE = "HOLD_RANK"


def main() -> None:
    run_dir, rank, ranks = Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    config, stop = load_config(run_dir), StopFlag()
    feed = Feed(
        run_dir,
        config.stored_workload(),
        config.stream,
        config.transport,
        copiers=Copiers(CountingCopier),
        prefetch_units=config.trainer.prefetch_units,
        audit=True,
        stopped=lambda: bool(stop),
        rank=rank,
        ranks=ranks,
    )
    place = run_dir / f"rank-{rank}.json"
    position, audit_bytes = StreamPosition(), 0
    if place.exists():
        size, _, text = place.read_text().partition("\n")
        position, audit_bytes = StreamPosition.model_validate_json(text), int(size)
    folder = run_dir / f"audit-{rank}"
    folder.mkdir(exist_ok=True)
    audit = Audit(folder, (audit_bytes,))
    try:
        for fed in feed.stream(position):
            if fed is None:
                continue
            audit.write(fed.audit_lines)
            part = place.with_suffix(".new")
            part.write_text(f"{audit.commit()[0]}\n{fed.position.model_dump_json()}")
            part.replace(place)
            feed.committed(fed.position)
            if HOLD_VARIABLE in os.environ:
                os.kill(os.getpid(), signal.SIGSTOP)
        if feed.ended:
            feed.finished(feed.position)
    finally:
        feed.close()


if __name__ == "__main__":
    main()
