"""Who else can change what is read at a path, and paths and places as users write them."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from common import paths as private_path
from common.errors import BadInputError
from common.options import absolute
from common.paths import TRUST_VARIABLE, changed_by_others, make_for_owner, require_place, require_private, user_path
from services.config.root import load_config

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
OTHER = 12345


@pytest.fixture(autouse=True)
def nobody_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """A folder with one of the user's own in it, and a file there."""
    (tmp_path / "above" / "own").mkdir(parents=True)
    (tmp_path / "above" / "own" / "file").touch(0o600)
    return tmp_path / "above"


def test_what_is_the_users_own_up_to_the_root_is_private(above: Path) -> None:
    for path in (above, above / "own", above / "own" / "file", above / "own" / ".." / "own" / "file"):
        require_private(path, "")


def test_a_missing_path_is_not_called_private(above: Path) -> None:
    with pytest.raises(FileNotFoundError):
        require_private(above / "nothing" / "file", "")


@pytest.mark.parametrize("part", ["", "own", "own/file"])
def test_what_everybody_can_change_is_refused_with_its_folder_its_mode_and_the_way_out(above: Path, part: str) -> None:
    (above / part).chmod(0o777)
    with pytest.raises(BadInputError) as caught:
        require_private(above / "own" / "file", "--shared")
    start = f"--shared {above / 'own' / 'file'}: {above / part} (mode 0777, user "
    assert str(caught.value).startswith(start)
    assert "can be changed by every user" in str(caught.value)
    assert "chmod go-w" in str(caught.value)


@needs_root
@pytest.mark.parametrize("part", ["", "own", "own/file"])
def test_what_a_group_can_change_is_refused_unless_that_group_is_trusted(
    above: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(above / part, -1, OTHER)
    (above / part).chmod(0o775)
    assert f"set {TRUST_VARIABLE}={OTHER} if you trust" in changed_by_others(above / "own" / "file")
    monkeypatch.setenv(TRUST_VARIABLE, str(OTHER + 1))
    assert changed_by_others(above / "own" / "file")
    monkeypatch.setenv(TRUST_VARIABLE, f"{OTHER + 1},{OTHER}")
    assert not changed_by_others(above / "own" / "file")
    (above / part).chmod(0o777)
    assert changed_by_others(above / "own" / "file"), "everybody is more than the group"
    monkeypatch.setenv(TRUST_VARIABLE, private_path.EVERYBODY)
    assert not changed_by_others(above / "own" / "file")


@needs_root
@pytest.mark.parametrize("part", ["", "own", "own/file"])
def test_what_belongs_to_another_user_is_refused_unless_his_group_is_trusted(
    above: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(above / part, OTHER, OTHER)
    assert f"user {OTHER}, group {OTHER}) belongs to another user" in changed_by_others(above / "own" / "file")
    monkeypatch.setenv(TRUST_VARIABLE, str(OTHER))
    assert not changed_by_others(above / "own" / "file")


@needs_root
def test_in_a_sticky_folder_only_what_is_the_users_own_counts(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above.chmod(0o1777)
    assert not changed_by_others(above / "own" / "file")
    assert "can be changed by every user" in changed_by_others(above), "others can put files there"
    (above / "link").symlink_to(above / "own")
    assert not changed_by_others(above / "link" / "file")
    os.chown(above / "link", OTHER, OTHER, follow_symlinks=False)
    assert f"{above / 'link'} (mode 0777, user {OTHER}" in changed_by_others(above / "link" / "file")
    os.chown(above / "own", OTHER, OTHER)
    assert changed_by_others(above / "own" / "file")
    monkeypatch.setenv(TRUST_VARIABLE, str(OTHER))  # in such a folder anybody may have made it under that group
    assert changed_by_others(above / "own" / "file")


def test_links_are_followed_and_the_folders_around_them_count(above: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "link").symlink_to("above/own")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "link")
    assert not changed_by_others(tmp_path / "open" / "link" / "file")
    (tmp_path / "open").chmod(0o777)
    assert changed_by_others(tmp_path / "open" / "link" / "file").startswith(f"{tmp_path / 'open'} (mode 0777")
    (tmp_path / "open").chmod(0o700)
    above.chmod(0o777)
    assert changed_by_others(tmp_path / "open" / "link" / "file").startswith(f"{above} (mode 0777")
    (tmp_path / "ring").symlink_to("ring")
    assert "no end" in changed_by_others(tmp_path / "ring")


@needs_root
def test_where_root_has_no_number_its_folders_are_those_of_nobody(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_path, "_unmapped_root", lambda: OTHER)
    os.chown(above, OTHER, OTHER)
    assert not changed_by_others(above / "own" / "file")
    os.chown(above / "own" / "file", OTHER, OTHER)
    assert changed_by_others(above / "own" / "file")


def test_new_folders_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0)
    make_for_owner(tmp_path / "a" / "b")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]


def test_the_users_home_is_found_and_any_other_path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert user_path("~/x") == user_path(Path("~/x")) == Path("/home/someone/x")
    assert user_path("a/~b") == Path("a/~b")
    assert absolute(("@~/list", "pelican://host/~x")) == ("@/home/someone/list", "pelican://host/~x")


@pytest.mark.parametrize("text", ["~nosuchuser/x", "~nosuchuser", "a\0b", "~/\0"])
def test_a_path_that_can_not_be_one_is_told_in_one_line(text: str) -> None:
    with pytest.raises(BadInputError, match=r"no home of that user|zero byte"):
        user_path(text)
    for option in (text, f"@{text}"):
        with pytest.raises(BadInputError):
            absolute((option,))


@pytest.mark.parametrize("name", ["new", "new/below/it", "there", "there/new", "file"])
def test_a_place_that_can_be_made_or_replaced_is_one_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("old")
    require_place(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("name", ["file/new", "file/new/below/it"])
def test_below_a_file_there_is_no_place(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError) as caught:
        require_place(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: {tmp_path / 'file'} is no folder; choose another place"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_takes_no_file_is_told_with_the_reason_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(number, os.strerror(number), "a name of no interest")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # root may write everywhere
    why = os.strerror(number).lower()
    with pytest.raises(BadInputError, match=rf"there \({why}\); name another one with -o$"):
        require_place(tmp_path / "new", "name another one with -o")


def test_a_pipe_in_the_place_of_a_stored_configuration_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(BadInputError, match=r"config\.json: "):
        load_config(tmp_path, environment={})
