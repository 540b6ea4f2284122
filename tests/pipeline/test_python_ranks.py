"""`icestream.stream` in two ranks started by torchrun: each gets its share of a batch; the state of any is exact."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from muon_files import make_events, write_events

import icestream

pytestmark = pytest.mark.slow

RANK = """
import json, os, sys
from itertools import islice
from pathlib import Path
import torch, torch.distributed as dist
import icestream

files, folder, resume = sys.argv[1:]
dist.init_process_group("gloo")
settings = {"stream.block_files": 2, "stream.slot_mib": 1}
stream = icestream.stream(files, decoders=1, batch_events=40, device="cpu", settings=settings)
if resume:
    stream.load_state_dict(torch.load(resume, weights_only=True))
seen = []
for batch in islice(stream, None if resume else 2):
    assert batch.num_events and 40 <= batch.total_events < 44 or resume  # microbatches of 3 events, or of 4
    seen.append([sorted(batch.events["primary_id"].tolist()), stream.run_dir.name, batch.total_events])
rank = dist.get_rank()
torch.save(stream.state_dict(), f"{folder}/state-{rank}.pt")
Path(f"{folder}/seen-{rank}.json").write_text(json.dumps(seen))
stream.close()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for index in range(4):
        events = make_events([number % 5 for number in range(60)], first=60 * index)
        write_events(folder / f"{index}.parquet", events, row_group_rows=20)
    return folder


def run_ranks(files: Path, folder: Path, resume: str = "") -> list[Any]:
    """What each of two ranks has seen, as JSON."""
    folder.mkdir()
    script = folder / "rank.py"
    script.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    package = str(Path(icestream.__file__).parents[1])
    with subprocess.Popen(
        [*torchrun, str(script), str(files), str(folder), resume],
        env=os.environ | {"PYTHONPATH": package, "GLOO_SOCKET_IFNAME": "lo"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, errors = process.communicate(timeout=200)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, errors
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_share_one_stream_and_the_state_of_either_continues_it(files: Path, tmp_path: Path) -> None:
    settings = {"stream.block_files": 2, "stream.slot_mib": 1}
    with icestream.stream(files, decoders=2, batch_events=40, device="cpu", settings=settings) as stream:
        alone = [sorted(batch.events["primary_id"].tolist()) for batch in stream]

    first = run_ranks(files, tmp_path / "first")
    states = [torch.load(tmp_path / f"first/state-{rank}.pt", weights_only=True) for rank in range(2)]
    assert states[0] == states[1]
    rest = run_ranks(files, tmp_path / "rest", str(tmp_path / "first/state-1.pt"))
    assert len({folder for ranks in (first[0], first[1]) for _, folder, _ in ranks}) == 1, "one fetcher for both"
    steps = [*zip(*first, strict=True), *zip(*rest, strict=True)]
    assert [sorted(one[0] + other[0]) for one, other in steps] == alone
    assert all(one[0] != other[0] for one, other in steps)
    assert all(one[2] == other[2] == len(one[0]) + len(other[0]) for one, other in steps)


def test_a_rank_without_a_process_group_is_one_clear_error(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with (
        icestream.stream(files, device="cpu") as stream,
        pytest.raises(icestream.BadInputError, match=r"rank 0 of 2: call torch.distributed.init_process_group\(\)"),
    ):
        next(iter(stream))
