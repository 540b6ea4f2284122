"""`icestream.stream`: one stream to the bit, whatever is killed, broken off or resumed, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from muon_files import make_events, write_events

import icestream
from common.status import FetcherStatus
from common.status_files import read_status

pytestmark = pytest.mark.slow

WAIT_S = 60.0
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


@pytest.fixture(scope="module")
def reference(files: Path) -> list[str]:
    """Two epochs, undisturbed."""
    with made(files) as stream:
        found = digests(stream) + digests(stream)
        assert stream.epoch == 2
        assert stream.counters.events_trained == 2 * EVENTS
    assert len(set(found)) == len(found) >= 2 * EVENTS // (2 * BATCH)
    return found


def children(pid: int) -> list[int]:
    """Living processes below a process."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *children(child)]
    return found


def command_line(pid: int) -> list[str]:
    """Words of a process's command; none if it has just ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return []


def commands(pid: int) -> dict[str, int]:
    """Process id of one service each of a stream's caller, by what its command line ends with."""
    found = {}
    for child in children(pid):
        for name in ("fetcher", "decoder", "icestream.streaming.services_process"):
            if name in command_line(child):
                found[name.rpartition(".")[2]] = child
    return found


def services_of_streams() -> list[int]:
    """Processes of all streams of this process; not those of other tests."""
    found = []
    for child in children(os.getpid()):
        if "icestream.streaming.services_process" in command_line(child):
            found += [child, *children(child)]
    return found


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_breaks_kills_and_resumes_in_random_order_with_other_decoders_change_no_bit(
    files: Path, reference: list[str]
) -> None:
    """The promise of the Python API: state_dict is exact for any number of decoders, and through kill -9 of all."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    found: list[str] = []
    stream = made(files, decoders=2)
    try:
        while stream.epoch < 2:
            found += digests(stream, rng.randrange(1, 8))
            match rng.choice(["go on", "kill", "kill", "resume", "load"]):
                case "kill":
                    running = commands(os.getpid())
                    if running:  # else those that were killed before are not back yet
                        with contextlib.suppress(ProcessLookupError):  # its parent was killed before
                            os.kill(running[rng.choice(sorted(running))], signal.SIGKILL)
                case "resume":
                    state = stream.state_dict()
                    stream.close()
                    stream = made(files, decoders=rng.choice([1, 3]))
                    stream.load_state_dict(state)
                case "load":
                    state, before = stream.state_dict(), len(found)
                    digests(stream, 2)  # forgotten
                    stream.load_state_dict(state)
                    assert len(found) == before
    finally:
        stream.close()
    assert found == reference, f"seed {seed}"
    assert not commands(os.getpid())


def test_a_loop_ends_with_the_epoch_and_one_that_was_left_is_continued(files: Path, reference: list[str]) -> None:
    with made(files) as stream:
        first = digests(stream, 5)
        assert stream.epoch == 0
        first += digests(stream)
        assert stream.epoch == 1
        assert first == [one for one in reference if one.startswith("0:")]
        folder = stream.run_dir
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_the_state_after_a_batch_that_was_fetched_ahead_of_its_training_is_that_batch_s_own(
    files: Path, reference: list[str]
) -> None:
    with made(files) as stream:
        trained, *ahead = islice(stream, 4)
        state = stream.state_dict(after=trained)
    with made(files, decoders=2) as stream:
        stream.load_state_dict(state)
        assert digests(stream, 3) == [digest(batch) for batch in ahead] == reference[1:4]


CALLER = """
import signal, sys, icestream
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have had it ignored
stream = icestream.stream(sys.argv[1], device="cpu", batch_events=50)
for batch in stream:
    print(stream.run_dir, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def caller(files: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process in its loop, and the run directory of its stream."""
    process = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(files)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(icestream.__file__).parents[1])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        yield process, Path(process.stdout.readline().strip())
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_services_die_with_their_caller_however_it_dies_and_leave_nothing(
    caller: tuple[subprocess.Popen[str], Path], number: signal.Signals
) -> None:
    process, folder = caller
    services = children(process.pid)
    assert len(commands(process.pid)) == 3
    assert folder.is_dir()
    process.send_signal(number)
    process.wait(WAIT_S)
    wait_for(lambda: not any(map(is_alive, services)), f"processes {services} outlived their caller")
    wait_for(lambda: not folder.exists(), f"{folder} was left behind")


def test_ctrl_c_while_the_stream_waits_for_data_loses_no_event(
    files: Path, reference: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(files) as stream:
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
    assert found == [one for one in reference if one.startswith("0:")]


def test_two_streams_at_once_do_not_disturb_each_other_and_one_without_a_name_is_stopped(
    files: Path, reference: list[str]
) -> None:
    """As in a notebook, where a cell is run again."""
    one, other = made(files), made(files)
    found = [[digest(first), digest(second)] for first, second in islice(zip(one, other, strict=False), 4)]
    assert found == [[each, each] for each in reference[:4]]
    services = services_of_streams()
    assert len(services) >= 6
    if (child := os.fork()) == 0:
        one.close()  # another process's streams are not its own
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(is_alive, services))
    assert digest(next(iter(one))) == reference[4]
    del one, other
    wait_for(lambda: not any(map(is_alive, services)), f"processes {services} of streams without a name are alive")


def test_files_without_data_and_other_files_than_those_of_the_state_are_one_clear_error_each(
    files: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(icestream.BadInputError, match="no file is usable"), made(tmp_path / "text.parquet") as stream:
        next(iter(stream))
    with made(files) as stream:
        next(iter(stream))
        state = stream.state_dict()
    write_events(tmp_path / "other.parquet", make_events([1, 2, 3]))
    with made(tmp_path / "other.parquet") as stream:
        stream.load_state_dict(state)
        with pytest.raises(icestream.BadInputError, match="use the same files to continue it"):
            next(iter(stream))


def test_values_that_can_t_be_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    degrees = [replace(event, primary=(1000.0, 57.5, 4.0, 1500.0)) for event in make_events([2] * 200)]
    write_events(tmp_path / "degrees.parquet", degrees)
    with made(tmp_path) as stream:
        for _ in range(2):
            assert sum(batch.num_events for batch in stream) == 200
    (warning,) = (record for record in caplog.records if "values that can't be" in record.getMessage())
    assert warning.levelname == "WARNING"
    assert "degrees.parquet: " in warning.getMessage()


def test_an_epoch_without_any_event_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    write_events(tmp_path / "large.parquet", make_events([9, 9]))
    # The fetcher sees it, too: who comes first is a matter of timing.
    left_out = r"all 2 events of this epoch are left out \(2 outliers\)|no event of a whole epoch can be trained"
    stream = made(tmp_path, **{"stream.max_particles_per_event": 5})
    with stream, pytest.raises(icestream.BadInputError, match=left_out):
        next(iter(stream))


def test_a_run_directory_keeps_the_list_of_files_and_is_refused_if_it_is_of_a_training(
    files: Path, tmp_path: Path, reference: list[str]
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
    assert found == reference[:6]
    assert read_status(tmp_path / "kept", "fetcher", FetcherStatus) is not None
    stored = (tmp_path / "kept" / "config.json").read_text()
    (tmp_path / "kept" / "config.json").write_text(stored.replace('"model": "none"', '"model": "wgan"'))
    with pytest.raises(icestream.BadInputError, match=r"kept is the run directory of a training \(wgan\)"):
        icestream.stream(files, **arguments)


def test_a_second_thread_on_a_stream_gets_a_clear_error_and_the_first_one_goes_on(
    files: Path, reference: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(files) as stream:
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
