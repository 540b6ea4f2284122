"""Copies to a directory and to a federation, and back: the same promises for both."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from federation.federation import Federation

from common.config import TokenConfig
from common.errors import BadInputError, TransientError
from common.process import StopFlag
from services import outputs as copies
from services import outputs as copying
from services.config.root import Config
from services.config.settings import OutputsConfig

_numbers = itertools.count()
RUN = "ab" * 16
EVENTS = "tensorboard/2026-11-21T10-00-00/events.out.tfevents.1.host"
STEP = "checkpoints/step-{:09d}.pt".format


both = pytest.mark.parametrize("config", ["folder", "federation"], indirect=True)
"""For what a directory and a federation do each in its own way."""


@pytest.fixture(params=["folder"])
def config(
    request: pytest.FixtureRequest, federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Config:
    if request.param == "folder":
        if federation.kind != "light":
            pytest.skip("a folder needs no federation")
        return Config(outputs=OutputsConfig(destination=str(tmp_path / "there")))
    for name, value in federation.certs.client_env().items():
        monkeypatch.setenv(name, value)
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(federation.issuer.mint("storage.read:/ storage.create:/ storage.modify:/"))
    place = federation.url(f"/private/out{os.getpid()}-{next(_numbers)}/run")
    outputs = OutputsConfig(destination=place)
    return Config(outputs=outputs, token=TokenConfig(file=token, storage_prefix=""))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write(tmp_path / "run", STEP(1), EVENTS)
    return tmp_path / "run"


def empty(run_dir: Path) -> Path:
    """Another directory for the same run, without anything in it."""
    new = run_dir.with_name("new")
    new.mkdir()
    return new


def write(run_dir: Path, *names: str, content: str = "") -> None:
    for name in names:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text(content or name * 1000)


@pytest.fixture
def open_sync(config: Config, tmp_path: Path) -> Iterator[Callable[..., tuple[copying.Copies, copying.Destination]]]:
    opened: list[copying.Destination] = []

    def make(run_dir: Path, take_over: bool = False) -> tuple[copying.Copies, copying.Destination]:
        opened.append(copying.open_destination(config, run_dir))
        sync = copying.Copies(run_dir, opened[-1], config.outputs.destination, take_over=take_over)
        return sync, opened[-1]

    yield make
    for destination in opened:
        destination.close()


Open = Callable[..., tuple[copying.Copies, copying.Destination]]


@both
def test_what_has_changed_is_copied_and_nothing_else(open_sync: Open, run_dir: Path) -> None:
    sync, destination = open_sync(run_dir)
    write(run_dir, "tensorboard/notes.txt", "tensorboard/a/b/events.out.tfevents.0.host")
    assert sync.turn() == 2
    assert sync.turn() == 0
    write(run_dir, EVENTS, content="grown" * 2000)
    write(run_dir, STEP(2), STEP(3))
    (run_dir / STEP(1)).unlink()
    assert sync.turn() == 3
    manifest = destination.manifest()
    assert manifest is not None
    assert manifest.checkpoints == [STEP(3), STEP(2)], "two are kept"
    assert manifest.files[EVENTS].size_bytes == 10_000
    again, _ = open_sync(run_dir)
    assert again.turn() == 0, "another process goes on where the last one was"
    assert not list(run_dir.rglob("*.part"))


@both
def test_a_run_whose_checkpoints_are_gone_gets_them_back(open_sync: Open, run_dir: Path, config: Config) -> None:
    assert copying.restore_if_gone(run_dir, config) == "", "they are there"
    sync, _ = open_sync(run_dir)
    write(run_dir, STEP(7))
    sync.turn()
    content = (run_dir / STEP(7)).read_bytes()
    new = empty(run_dir)
    nowhere = config.model_copy(update={"outputs": OutputsConfig(destination=f"{config.outputs.destination}-2")})
    assert copying.restore_if_gone(new, nowhere) == "", "nothing was copied there yet: a new run"
    assert STEP(7) in copying.restore_if_gone(new, config)
    assert (new / STEP(7)).read_bytes() == content
    assert (new / STEP(7)).stat().st_mode & 0o077 == 0
    assert (new / EVENTS).exists()
    assert not (new / STEP(1)).exists(), "the newest is enough"
    again, _ = open_sync(new)
    assert again.turn() == 0, "it is the same run"


@both
def test_another_runs_outputs_are_not_replaced_unless_asked(open_sync: Open, run_dir: Path) -> None:
    open_sync(run_dir)[0].turn()
    other = run_dir.with_name("other")
    write(other, STEP(5))
    with pytest.raises(BadInputError, match="holds the outputs of another run"):
        open_sync(other)[0].turn()
    sync, destination = open_sync(other, take_over=True)
    sync.turn()
    manifest = destination.manifest()
    assert manifest is not None
    assert list(manifest.files) == [STEP(5)]


def test_a_checkpoint_that_the_trainer_deletes_meanwhile_is_no_error(
    open_sync: Open, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, destination = open_sync(run_dir)
    put = destination.put

    def put_slowly(name: str, path: Path) -> None:
        (run_dir / STEP(1)).unlink(missing_ok=True)
        put(name, path)

    monkeypatch.setattr(destination, "put", put_slowly)
    assert sync.turn() == 2
    assert sync.turn() == 0


@pytest.mark.parametrize("config", ["federation"], indirect=True)
def test_an_origin_that_fails_is_told_and_the_next_turn_works(
    open_sync: Open, run_dir: Path, federation: Federation
) -> None:
    sync, _ = open_sync(run_dir)
    federation.origin.fault("status", 500, methods=("PUT",))
    with pytest.raises(TransientError, match="/run/"):
        sync.turn()
    federation.heal()
    assert sync.turn() == 2


@pytest.mark.parametrize("config", ["federation"], indirect=True)
def test_a_token_that_may_only_read_is_told(
    run_dir: Path, federation: Federation, config: Config, open_sync: Open
) -> None:
    assert config.token.file is not None
    config.token.file.write_text(federation.issuer.mint("storage.read:/"))
    sync, _ = open_sync(run_dir)
    with pytest.raises(TransientError, match=r"refuses to write it \(403\).*storage\.modify"):
        sync.turn()


@both
def test_a_destination_that_is_damaged_is_no_reason_to_begin_anew(
    open_sync: Open, run_dir: Path, config: Config, federation: Federation
) -> None:
    open_sync(run_dir)[0].turn()
    where, new = config.outputs.destination, empty(run_dir)
    folder = Path(where) if "://" not in where else federation.root / where.split("/", 3)[3]
    (folder / STEP(1)).write_text("x" * (folder / STEP(1)).stat().st_size)
    with pytest.raises(BadInputError, match=r"the copies there can't be read.*--fresh"):
        copying.restore_if_gone(new, config)
    (folder / copying.MANIFEST).write_text("{}")
    with pytest.raises(BadInputError, match="not a list of outputs"):
        copying.restore_if_gone(new, config)
    assert not list((new / "checkpoints").glob("*.pt"))


def test_an_event_file_that_grew_without_being_told_does_not_keep_the_checkpoint_away(
    open_sync: Open, run_dir: Path, config: Config
) -> None:
    open_sync(run_dir)[0].turn()
    (Path(config.outputs.destination) / EVENTS).write_text("half of a newer state")
    new = empty(run_dir)
    assert STEP(1) in copying.restore_if_gone(new, config)
    assert not list((new / EVENTS).parent.iterdir())


def test_a_run_whose_destination_was_taken_over_copies_nothing_more(open_sync: Open, run_dir: Path) -> None:
    first, destination = open_sync(run_dir)
    first.turn()
    other = run_dir.with_name("other")
    write(other, STEP(5))
    open_sync(other, take_over=True)[0].turn()
    write(run_dir, STEP(9))
    with pytest.raises(BadInputError, match="another run has taken it over"):
        first.turn()
    manifest = destination.manifest()
    assert manifest is not None
    assert manifest.checkpoints == [STEP(5)]


def test_a_destination_that_goes_away_is_told_once_the_time_of_the_last_copies_is_over(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "FINAL_SYNC_S", 0.05)
    monkeypatch.setattr(copies, "_FINAL_PAUSE_S", 0.01)
    there = tmp_path / "there"
    asked: list[bool] = []

    class Stop(StopFlag):
        def __init__(self) -> None:
            """Leave this process's signals alone."""

        def __bool__(self) -> bool:
            return bool(asked)

    def go_away(seconds: float) -> None:
        if not asked:
            assert (there / STEP(1)).exists(), "the first copy"
            shutil.rmtree(there)
            there.touch()
            write(run_dir, STEP(2))
            asked.append(True)

    monkeypatch.setattr("time.sleep", go_away)
    with pytest.raises(BadInputError, match=r"the newest outputs were not copied: .*there"):
        copying.serve(run_dir, Config(outputs=OutputsConfig(destination=str(there))), Stop(), take_over=False)


def one(size_bytes: int) -> copying.OutputFile:
    return copying.OutputFile(size_bytes=size_bytes, digest="sha256=" + "0" * 64)


def test_the_newest_checkpoint_goes_first_and_what_has_not_changed_stays() -> None:
    local = {STEP(1): one(1), STEP(2): one(2), "tensorboard/events.a": one(3), "tensorboard/events.b": one(4)}
    manifest = copying.Manifest(run_id=RUN, files={STEP(1): one(1), "tensorboard/events.a": one(2)})
    assert copying.changes(local, manifest) == ([STEP(2), "tensorboard/events.a", "tensorboard/events.b"], [])
    assert copying.changes({}, manifest) == ([], [])
    manifest = copying.Manifest(run_id=RUN, files={STEP(n): one(n) for n in (1, 2, 3)})
    assert copying.changes({STEP(4): one(4)}, manifest) == ([STEP(4)], [STEP(2), STEP(1)])
    manifest = copying.Manifest(run_id=RUN, files={STEP(8): one(8), STEP(9): one(9)})
    assert copying.changes({STEP(3): one(3)}, manifest) == ([], []), "older than those that are kept"


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"run_id": "x"}',
        *(
            b'{"run_id": "%s", "files": {"%s": {"size_bytes": 1, "digest": "sha256=%s"}}}'
            % (RUN.encode(), name, b"0" * 64)
            for name in (b"checkpoints/../../x", b"tensorboard/../x", b"checkpoints/a/x", b"other/x")
        ),
        b'{"run_id": "%s", "files": {"checkpoints/x": {"size_bytes": -1, "digest": "md5=0"}}}' % RUN.encode(),
    ],
)
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(BadInputError, match="there: not a list of outputs"):
        copying.parse_manifest(text, "there")
