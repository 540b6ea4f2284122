"""Token files: what is read, what is refused, how they are written."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest
from token_places import another_user, own_places, token_file

from common.pelican.tokens.errors import BadTokenError
from common.pelican.tokens.files import (
    MAX_FILE_BYTES,
    make_private_folder,
    read_private,
    read_token,
    signature,
    write_private,
)


@pytest.fixture(autouse=True)
def no_token_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_places(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "s3cret",
        "s3cret\n",
        "  s3cret\r\n",
        '{"access_token": "s3cret", "expires_in": 5}',
        '{"access_token":"s3cret"}\n',
    ],
)
def test_a_token_is_read_from_plain_text_and_from_json(tmp_path: Path, text: str) -> None:
    assert read_token(token_file(tmp_path / "token", text)) == "s3cret"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"s3cret s3cret", "spaces"),
        (b"s3cret\ns3cret", "spaces nor control"),
        (b"s3cret\x1b[2J", "control"),
        (b"\xff\xfes3cret", "isn't text"),
        (b"Bearer s3cret", "begins with 'Bearer'"),
        (b'{"token": "s3cret"}', "access_token"),
        (b'{"access_token": 7}', "access_token"),
        (b'{"access_token": "s3cret two"}', "spaces"),
        (b'{"access_token"', "neither plain text nor JSON"),
        (b"-----BEGIN s3cret KEY-----", "spaces"),
        (b"s" * (MAX_FILE_BYTES + 1), "too many"),
    ],
)
def test_what_is_no_token_is_named_and_not_quoted(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BadTokenError, match=reason) as caught:
        read_token(path)
    assert str(path) in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_file_that_others_can_read_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    path = token_file(tmp_path / "token", "s3cret", mode)
    with caplog.at_level(logging.WARNING):
        assert read_token(path) == read_token(path) == "s3cret"
    assert len(caplog.records) == int(warns)
    assert "s3cret" not in caplog.text
    assert not warns or f"chmod 600 {path}" in caplog.text


@pytest.mark.parametrize("part", ["token", ""])
def test_a_file_that_others_can_change_or_exchange_is_refused(tmp_path: Path, part: str) -> None:
    path = token_file(tmp_path / "token", "s3cret")
    (tmp_path / part).chmod(0o722)
    with pytest.raises(BadTokenError, match=r"\(mode 0722.*can be changed by every user") as caught:
        read_token(path)
    assert "s3cret" not in str(caught.value)


def test_a_file_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = token_file(tmp_path / "token", "s3cret")
    with another_user(monkeypatch, path), pytest.raises(BadTokenError, match="belongs to user"):
        read_token(path)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(BadTokenError, match="not a file"):
            read_token(path)
    with pytest.raises(FileNotFoundError):
        read_token(tmp_path / "nowhere")


def test_a_link_is_followed_except_where_anybody_could_have_laid_it(tmp_path: Path) -> None:
    token_file(tmp_path / "token", "s3cret")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "token")
    assert read_token(link) == "s3cret"
    with pytest.raises(BadTokenError, match="can't be read"):
        read_token(link, shared_folder=True)


@pytest.mark.parametrize("how", ["hard link", "0620", "0602", "fifo", "directory"])
def test_where_anybody_can_write_only_a_file_that_is_surely_ours_is_read(tmp_path: Path, how: str) -> None:
    path = tmp_path / "bt_u1"
    match how:
        case "hard link":  # to a file of ours that was never meant to be sent to a server
            path.hardlink_to(token_file(tmp_path / "secret", "s3cret"))
        case "fifo":
            os.mkfifo(path, 0o600)
        case "directory":
            path.mkdir()
        case mode:
            token_file(path, "s3cret", int(mode, 8))
    with pytest.raises(BadTokenError, match=r"has 2 names|written by others|not a file") as caught:
        read_token(path, shared_folder=True)
    assert "s3cret" not in str(caught.value)
    token_file(tmp_path / "bt_u2", "s3cret", 0o640)
    assert read_token(tmp_path / "bt_u2", shared_folder=True) == "s3cret"


def test_a_signature_tells_any_change(tmp_path: Path) -> None:
    path = tmp_path / "token"
    seen = {signature(path)}
    for text in ("one", "two", "three"):
        token_file(path, text)
        seen.add(signature(path))
    path.unlink()
    assert len(seen) == 4
    assert signature(path) is None


def test_a_written_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        write_private(tmp_path / "a" / "b" / "token.json", "text")
        write_private(tmp_path / "a" / "b" / "token.json", "newer")
    finally:
        os.umask(former)
    path = tmp_path / "a" / "b" / "token.json"
    assert read_private(path) == "newer"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["token.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "token.json"
    write_private(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(path, "new")
    assert path.read_text() == "old"
    assert [found.name for found in path.parent.iterdir()] == ["token.json"]


def test_an_open_folder_is_closed_and_one_of_somebody_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir(mode=0o755)
    make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with another_user(monkeypatch, folder), pytest.raises(BadTokenError, match="XDG_CACHE_HOME"):
        make_private_folder(folder)
