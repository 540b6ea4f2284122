from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replace_file, replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What was synced: its name, and what its folder held then (for a folder: what it held itself)."""
    calls: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        fsync(descriptor)
        calls.append((target.name, names(target if target.is_dir() else target.parent)))

    monkeypatch.setattr(os, "fsync", watched)
    return calls


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_no_part(path: Path, error: BaseException) -> None:
    replace_file(path, "old", durable=False)

    def write() -> None:
        with replacing(path, durable=True) as part:
            part.write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert names(path.parent) == ["config.json"]


@pytest.mark.process
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_whoever_is_killed_leaves_the_old_file_or_the_new_one_and_the_next_writer_is_not_hindered(
    path: Path, step: str
) -> None:
    seen = set()
    for countdown in range(1, 4):
        replace_file(path, "old", durable=False)
        pid = os.fork()
        if pid == 0:
            _killed_at(step, countdown)
            replace_file(path, "new", durable=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            break
        seen.add(path.read_text())
        replace_file(path, "next", durable=False)
        assert path.read_text() == "next"
        assert names(path.parent) == ["config.json"]
    assert "old" in seen
    assert seen <= {"old", "new"}


def _killed_at(step: str, countdown: int) -> None:
    """The call of os.``step`` that comes as number ``countdown`` kills this process."""
    function = getattr(os, step)

    def dies(*arguments: object, **keywords: object) -> object:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)

    setattr(os, step, dies)


def test_a_durable_file_is_on_disk_before_it_has_its_name_and_so_is_its_name_at_the_end(
    path: Path, synced: list[tuple[str, list[str]]]
) -> None:
    replace_file(path, "new", durable=True)
    assert synced == [("config.part", ["config.part"]), (path.parent.name, ["config.json"])]


def test_it_is_its_owners_alone_from_its_first_byte_on(path: Path) -> None:
    path.write_text("open to all")
    path.with_suffix(".part").write_text("of one who was killed")
    os.umask(0o022)
    with replacing(path, durable=False) as part:
        assert mode_of(part) == 0o600
        assert part.read_bytes() == b""
    assert mode_of(path) == 0o600
    replace_file(path, "", durable=False, mode=AS_UMASK_SAYS)
    assert mode_of(path) == 0o644


def test_no_link_that_takes_the_parts_name_while_it_is_written_is_followed(path: Path) -> None:
    other = path.with_name("authorized_keys")
    other.write_text("mine")
    with replacing(path, durable=False) as part:
        path.with_suffix(".part").unlink()
        path.with_suffix(".part").symlink_to(other)
        part.write_text("new")
        with part.open("ab") as file:
            file.write(b"er")
        assert part.read_text() == "newer"
    assert other.read_text() == "mine"


def test_an_error_names_the_file_and_no_descriptor(path: Path) -> None:
    def write() -> None:
        with replacing(path, durable=False) as part:
            raise OSError(28, "No space left on device", str(part))

    with pytest.raises(OSError, match=r"No space left on device: '.*/config\.part'"):
        write()


def test_two_writers_do_not_meet(path: Path) -> None:
    with replacing(path, durable=False, part=part_of_one_writer(path)) as one:
        one.write_text("one")
        replace_file(path, "two", durable=False, part=part_of_one_writer(path))
        assert path.read_text() == "two"
    assert path.read_text() == "one"
    assert names(path.parent) == ["config.json"]
