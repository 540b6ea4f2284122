"""Who else can change what is read at a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common import private_path
from common.errors import BadInputError
from common.private_path import TRUST_VARIABLE, changed_by_others, make_for_owner, require_private

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


def test_the_group_that_a_user_has_alone_is_nobody_else(above: Path) -> None:
    private_path._is_own_group.cache_clear()
    if not private_path._is_own_group(above.stat().st_gid):
        pytest.skip("the user has no group alone")
    (above / "own").chmod(0o775)
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
    before = os.umask(0)
    try:
        make_for_owner(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
