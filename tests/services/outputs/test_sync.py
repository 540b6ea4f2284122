"""Copies to a directory and to a federation, and back: the same promises for both."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from federation.federation import Federation

from common.errors import BadInputError, TransientError
from common.pelican.config import PelicanConfig
from common.pelican.tokens.config import TokenConfig
from services.config.outputs import OutputsConfig
from services.config.root import Config
from services.outputs.destinations import Destination, open_destination
from services.outputs.manifest import MANIFEST
from services.outputs.restore import restore_if_gone
from services.outputs.sync import Sync

_numbers = itertools.count()
EVENTS = "tensorboard/2026-11-21T10-00-00/events.out.tfevents.1.host"
STEP = "checkpoints/step-{:09d}.pt".format


@pytest.fixture(params=["folder", "federation"])
def config(
    request: pytest.FixtureRequest, federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Config:
    limit_s = 2 if "hangs" in request.param else 20
    quick = PelicanConfig(connect_timeout_s=limit_s, read_timeout_s=limit_s, list_timeout_s=limit_s, list_tries=1)
    if request.param == "folder":
        if federation.kind != "light":
            pytest.skip("a folder needs no federation")
        return Config(outputs=OutputsConfig(destination=str(tmp_path / "there")), pelican=quick)
    for name, value in federation.certs.client_env().items():
        monkeypatch.setenv(name, value)
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(federation.issuer.mint("storage.read:/ storage.create:/ storage.modify:/"))
    place = federation.url(f"/private/out{os.getpid()}-{next(_numbers)}/run")
    outputs = OutputsConfig(destination=place)
    return Config(outputs=outputs, pelican=quick, token=TokenConfig(file=token, storage_prefix=""))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write(tmp_path / "run", STEP(1), EVENTS)
    return tmp_path / "run"


def write(run_dir: Path, *names: str, content: str = "") -> None:
    for name in names:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text(content or name * 1000)


@pytest.fixture
def open_sync(config: Config, tmp_path: Path) -> Iterator[Callable[..., tuple[Sync, Destination]]]:
    opened: list[Destination] = []

    def make(run_dir: Path, take_over: bool = False) -> tuple[Sync, Destination]:
        opened.append(open_destination(config, run_dir))
        sync = Sync(run_dir, opened[-1], config.outputs.destination, 2, take_over=take_over)
        return sync, opened[-1]

    yield make
    for destination in opened:
        destination.close()


Open = Callable[..., tuple[Sync, Destination]]


def test_what_has_changed_is_copied_and_nothing_else(open_sync: Open, run_dir: Path) -> None:
    sync, destination = open_sync(run_dir)
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


def test_event_files_of_a_run_of_the_version_before_lie_in_no_folder_and_are_copied_too(
    open_sync: Open, run_dir: Path
) -> None:
    older = "tensorboard/events.out.tfevents.0.host"
    write(run_dir, older, "tensorboard/notes.txt", "tensorboard/a/b/events.out.tfevents.0.host")
    sync, destination = open_sync(run_dir)
    sync.turn()
    manifest = destination.manifest()
    assert manifest is not None
    assert set(manifest.files) == {STEP(1), EVENTS, older}


def test_a_run_whose_checkpoints_are_gone_gets_them_back(open_sync: Open, run_dir: Path, config: Config) -> None:
    assert restore_if_gone(run_dir, config) == "", "they are there"
    sync, _ = open_sync(run_dir)
    write(run_dir, STEP(7))
    sync.turn()
    content = (run_dir / STEP(7)).read_bytes()
    empty = run_dir.with_name("new")
    empty.mkdir()
    assert STEP(7) in restore_if_gone(empty, config)
    assert (empty / STEP(7)).read_bytes() == content
    assert (empty / STEP(7)).stat().st_mode & 0o077 == 0
    assert (empty / EVENTS).exists()
    assert not (empty / STEP(1)).exists(), "the newest is enough"
    again, _ = open_sync(empty)
    assert again.turn() == 0, "it is the same run"


def test_nothing_copied_yet_is_a_new_run(run_dir: Path, config: Config) -> None:
    empty = run_dir.with_name("new")
    empty.mkdir()
    assert restore_if_gone(empty, config) == ""


def test_another_runs_outputs_are_not_replaced_unless_asked(open_sync: Open, run_dir: Path) -> None:
    open_sync(run_dir)[0].turn()
    other = run_dir.with_name("other")
    write(other, STEP(5))
    with pytest.raises(BadInputError, match="holds the outputs of another run"):
        open_sync(other)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value", "config"),
    [("status", 500, "federation"), ("hang", 0, "federation that hangs"), ("disconnect", 0, "federation")],
    indirect=["config"],
)
def test_an_origin_that_fails_is_told_and_the_next_turn_works(
    open_sync: Open, run_dir: Path, federation: Federation, kind: str, value: float
) -> None:
    sync, _ = open_sync(run_dir)
    federation.origin.fault(kind, value, methods=("PUT",))
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


def test_a_destination_that_is_damaged_is_no_reason_to_begin_anew(
    open_sync: Open, run_dir: Path, config: Config, federation: Federation
) -> None:
    open_sync(run_dir)[0].turn()
    where = config.outputs.destination
    folder = Path(where) if "://" not in where else federation.root / where.split("/", 3)[3]
    empty = run_dir.with_name("new")
    empty.mkdir()
    (folder / STEP(1)).write_text("x" * (folder / STEP(1)).stat().st_size)
    with pytest.raises(BadInputError, match=r"the copies there can't be read.*--fresh"):
        restore_if_gone(empty, config)
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(BadInputError, match="not a list of outputs"):
        restore_if_gone(empty, config)
    assert not list((empty / "checkpoints").glob("*.pt"))


def test_an_event_file_that_grew_without_being_told_does_not_keep_the_checkpoint_away(
    open_sync: Open, run_dir: Path, config: Config, federation: Federation
) -> None:
    open_sync(run_dir)[0].turn()
    where = config.outputs.destination
    folder = Path(where) if "://" not in where else federation.root / where.split("/", 3)[3]
    (folder / EVENTS).write_text("half of a newer state")
    empty = run_dir.with_name("new")
    empty.mkdir()
    assert STEP(1) in restore_if_gone(empty, config)
    assert not list((empty / EVENTS).parent.iterdir())


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
