"""`icestream.stream`: one stream to the bit, whatever is killed, broken off or resumed, and no process left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from muon_files import make_events, write_events
from proc import WAIT_S, below, command_line, is_alive, wait_for

import icestream
from common.status import FetcherStatus, read_status

pytestmark = pytest.mark.slow

PACKAGE_ROOT = str(Path(icestream.__file__).parents[1])
EVENTS, BATCH = 1200, 50


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files with four row groups each: 200 events a file, 0 to 6 muons an event."""
    folder = tmp_path_factory.mktemp("files")
    counts = [number % 7 for number in range(EVENTS)]
    for index in range(6):
        events = make_events(counts[200 * index : 200 * (index + 1)], first=200 * index)
        write_events(folder / f"{index}.parquet", events, row_group_rows=50)
    return folder


def made(inputs: Path | str, decoders: int = 1, **settings: object) -> icestream.EventStream:
    return icestream.stream(
        inputs,
        decoders=decoders,
        batch_events=BATCH,
        device="cpu",
        seed=3,
        settings={"stream.block_files": 3, "local.restart_min_s": 0.05, "stream.slot_mib": 1} | settings,
    )


def digest(batch: icestream.RaggedBatch) -> str:
    """Digest of all bytes of a batch, with its epoch."""
    tensors = [batch.offsets, *batch.events.values(), *batch.particles.values()]
    return f"{batch.epoch}:" + sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def digests(stream: icestream.EventStream, most: int | None = None) -> list[str]:
    return [digest(batch) for batch in islice(stream, most)]


@dataclass(frozen=True)
class Shared:
    """A stream whose services serve several tests, and what it gives undisturbed."""

    stream: icestream.EventStream
    start: dict[str, Any]
    reference: list[str]
    """Digests of the batches of two epochs."""
    ids: list[list[list[int]]]
    """Of the events of each batch of the first epoch."""

    def begin(self) -> icestream.EventStream:
        self.stream.load_state_dict(self.start)
        return self.stream


@pytest.fixture(scope="module")
def shared(files: Path) -> Iterator[Shared]:
    with made(files) as stream:
        start, ids, found = stream.state_dict(), [], []
        for batch in stream:
            ids.append(sorted(batch.events["primary_id"].tolist()))
            found.append(digest(batch))
        found += digests(stream)
        assert stream.epoch == 2
        assert stream.counters.events_trained == 2 * EVENTS
        assert len(set(found)) == len(found) >= 2 * EVENTS // (2 * BATCH)
        yield Shared(stream, start, found, ids)


def commands(pids: set[int]) -> dict[str, int]:
    """Process id of one service each, by what its command line ends with."""
    found = {}
    for pid in pids:
        for name in ("fetcher", "decoder", "icestream.stream_process"):
            if name in command_line(pid):
                found[name.rpartition(".")[2]] = pid
    return found


def services_of_streams() -> set[int]:
    """Processes of all streams of this process; not those of other tests."""
    callers = [child for child in below(os.getpid()) if "icestream.stream_process" in command_line(child)]
    return below(*callers)


def test_breaks_kills_and_resumes_with_other_decoders_change_no_bit(files: Path, shared: Shared) -> None:
    """The promise of the Python API: state_dict is exact for any number of decoders, and through kill -9 of all."""
    others = services_of_streams()
    stream = made(files, decoders=2)
    try:
        found = digests(stream, 3)
        for name in ("decoder", "fetcher", "stream_process"):
            wait_for(lambda name=name: name in commands(services_of_streams() - others), name)
            os.kill(commands(services_of_streams() - others)[name], signal.SIGKILL)
            found += digests(stream, 4)
        state = stream.state_dict()
        digests(stream, 2)  # forgotten
        stream.close()
        stream = made(files, decoders=1)
        stream.load_state_dict(state)
        while stream.epoch < 2:
            found += digests(stream)
    finally:
        stream.close()
    assert found == shared.reference
    assert not commands(services_of_streams() - others)


CALLER = """
import sys, icestream
stream = icestream.stream(sys.argv[1], device="cpu", batch_events=50)
for batch in stream:
    print(stream.run_dir, flush=True)
    sys.stdin.readline()
"""


def test_the_services_die_with_their_caller_and_leave_nothing(files: Path) -> None:
    environment = os.environ | {"PYTHONPATH": PACKAGE_ROOT}
    command = [sys.executable, "-c", CALLER, str(files)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        services = below(process.pid) - {process.pid}
        assert len(commands(services)) == 3
        assert folder.is_dir()
        process.kill()
    wait_for(lambda: not any(map(is_alive, services)), f"processes {services} outlived their caller")
    wait_for(lambda: not folder.exists(), f"{folder} was left behind")


def test_ctrl_c_while_the_stream_waits_for_data_loses_no_event(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = shared.begin()
    found = digests(stream, 3)
    feed, services = stream._session.joined()
    asked = iter([KeyboardInterrupt()])

    def interrupted() -> bool:
        for error in asked:
            raise error
        return services.ended()

    monkeypatch.setattr(feed, "_stopped", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found.extend(map(digest, stream))  # keeps what came before the error
    found += digests(stream)
    assert found == [one for one in shared.reference if one.startswith("0:")]


def test_two_streams_at_once_do_not_disturb_each_other_and_one_without_a_name_is_stopped(
    files: Path, shared: Shared
) -> None:
    """As in a notebook, where a cell is run again."""
    reference, first = shared.reference, shared.begin()
    digest(next(iter(first)))
    others = services_of_streams()
    other = made(files)
    assert [digest(batch) for batch in islice(other, 3)] == reference[:3]
    assert digests(first, 3) == reference[1:4]
    services = services_of_streams() - others
    assert len(services) >= 3
    if (child := os.fork()) == 0:
        other.close()  # another process's streams are not its own
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(is_alive, services))
    assert digest(next(iter(other))) == reference[3]
    del other
    wait_for(lambda: not any(map(is_alive, services)), f"processes {services} of a stream without a name are alive")
    assert all(map(is_alive, others))


def test_files_without_data_and_other_files_than_those_of_the_state_are_one_clear_error_each(
    shared: Shared, tmp_path: Path
) -> None:
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(icestream.BadInputError, match="no file is usable"), made(tmp_path / "text.parquet") as stream:
        next(iter(stream))
    stream = shared.begin()
    next(iter(stream))
    state = stream.state_dict()
    write_events(tmp_path / "other.parquet", make_events([1, 2, 3]))
    with made(tmp_path / "other.parquet") as stream:
        stream.load_state_dict(state)
        with pytest.raises(icestream.BadInputError, match="use the same files to continue it"):
            next(iter(stream))


def test_an_epoch_without_any_event_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    write_events(tmp_path / "large.parquet", make_events([9, 9]))
    # The fetcher sees it, too: who comes first is a matter of timing.
    left_out = r"all 2 events of this epoch are left out \(2 outliers .*\)|no event of a whole epoch can be trained"
    stream = made(tmp_path, **{"stream.max_particles_per_event": 5})
    with stream, pytest.raises(icestream.BadInputError, match=left_out):
        next(iter(stream))


def test_behind_an_epoch_of_damaged_files_the_state_goes_on_once_they_are_mended(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(6)]
    for number, path in enumerate(paths):
        write_events(path, make_events([1] * 1000, first=1000 * number), row_group_rows=50)
    small: dict[str, object] = {"stream.unit_events": 200, "stream.slots": 4}  # so that damage is met unit by unit
    good = [path.read_bytes() for path in paths]
    with made(tmp_path, **small) as stream:
        trained = sum(batch.num_events for batch in stream)
        for path, content in zip(paths, good, strict=True):
            footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
            path.write_bytes(content[:4] + bytes(footer - 4) + content[footer:])
        for _ in range(3):
            with contextlib.suppress(icestream.BadInputError):
                list(stream)
        state = stream.state_dict()
    for path, content in zip(paths, good, strict=True):
        path.write_bytes(content)
    with made(tmp_path, **small) as stream:
        stream.load_state_dict(state)
        assert sum(batch.num_events for batch in stream) == trained == 6_000


def test_a_run_directory_keeps_the_list_of_files_and_is_refused_if_it_is_of_a_training(
    files: Path, tmp_path: Path, shared: Shared
) -> None:
    arguments: dict[str, Any] = {"device": "cpu", "run_dir": tmp_path / "kept"}
    settings = {"stream.block_files": 3, "stream.slot_mib": 1}
    with icestream.stream(files, batch_events=BATCH, seed=3, settings=settings, **arguments) as stream:
        found = digests(stream, 3)
        state = stream.state_dict()
    with icestream.stream(**arguments) as stream:  # its settings are those of the folder
        stream.load_state_dict(state)
        found += digests(stream, 3)
        with pytest.raises(icestream.BadInputError, match=r"kept: the run is in use by .*icestream.stream"):
            next(iter(icestream.stream(**arguments)))
    assert found == shared.reference[:6]
    assert read_status(tmp_path / "kept", "fetcher", FetcherStatus) is not None
    stored = (tmp_path / "kept" / "config.json").read_text()
    (tmp_path / "kept" / "config.json").write_text(stored.replace('"model": "none"', '"model": "wgan"'))
    with pytest.raises(icestream.BadInputError, match=r"kept is the run directory of a training \(wgan\)"):
        icestream.stream(files, **arguments)


def test_a_second_thread_on_a_stream_gets_a_clear_error_and_the_first_one_goes_on(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, reference = shared.begin(), shared.reference
    begun, refused, fetch = threading.Event(), threading.Event(), stream._fetched

    def wait_for_the_other() -> Any:
        begun.set()
        assert refused.wait(WAIT_S)
        return fetch()

    monkeypatch.setattr(stream, "_fetched", wait_for_the_other)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(digests, stream)
        assert begun.wait(WAIT_S)
        with pytest.raises(icestream.BadInputError, match="give each thread a stream of its own"):
            next(iter(stream))
        refused.set()
        assert first.result(WAIT_S) == reference[: len(reference) // 2]


# ------------------------------------------------------------------ ranks that torchrun starts

RANK = """
import json, sys
from itertools import islice
from pathlib import Path
import torch, torch.distributed as dist
import icestream

files, folder = sys.argv[1:]
dist.init_process_group("gloo")
rank, seen, states = dist.get_rank(), [], []
settings = {"stream.block_files": 3, "stream.slot_mib": 1}
for most in (2, None):
    with icestream.stream(files, decoders=1, batch_events=50, device="cpu", seed=3, settings=settings) as stream:
        if states:
            stream.load_state_dict(states[1])
        for batch in islice(stream, most):
            assert batch.num_events and 50 <= batch.total_events < 54 or states  # microbatches of 3 events, or of 4
            seen.append([sorted(batch.events["primary_id"].tolist()), stream.run_dir.name, batch.total_events])
        torch.save(stream.state_dict(), f"{folder}/state-{rank}.pt")
    dist.barrier()
    states = [torch.load(f"{folder}/state-{other}.pt", weights_only=True) for other in range(2)]
    assert states[0] == states[1]
Path(f"{folder}/seen-{rank}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
"""


def test_two_ranks_share_one_stream_and_the_state_of_either_continues_it(
    files: Path, shared: Shared, tmp_path: Path
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": PACKAGE_ROOT, "GLOO_SOCKET_IFNAME": "lo"}
    command = [*torchrun, str(script), str(files), str(tmp_path)]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate(timeout=WAIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, errors
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    assert len({folder for ranks in seen for _, folder, _ in ranks}) == 2, "one fetcher for both, of each stream"
    steps = list(zip(*seen, strict=True))
    assert [sorted(one[0] + other[0]) for one, other in steps] == shared.ids
    assert all(one[0] != other[0] for one, other in steps)
    assert all(one[2] == other[2] == len(one[0]) + len(other[0]) for one, other in steps)


def test_a_rank_without_a_process_group_is_one_clear_error(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "h", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    with (
        icestream.stream(files, device="cpu") as stream,
        pytest.raises(icestream.BadInputError, match=r"rank 0 of 2: call torch.distributed.init_process_group\(\)"),
    ):
        next(iter(stream))
