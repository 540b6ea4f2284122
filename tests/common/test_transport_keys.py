from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

from common.errors import BadInputError
from common.transport.keys import client_keys, known_clients, make_client_keys, make_server_keys, server_keys
from icestream.commands.keys import keys as keys_command


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Modes are those of the code, whatever the user's umask."""
    umask = os.umask(0)
    yield
    os.umask(umask)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert make_server_keys(tmp_path / "keys")
    make_client_keys(tmp_path / "keys", "h200")
    return tmp_path / "keys"


def test_both_sides_find_what_they_need(folder: Path) -> None:
    server = server_keys(folder)
    server_public, client = client_keys(folder / "for-h200")
    assert server_public == server.public == zmq.curve_public(server.secret)
    assert client.public == zmq.curve_public(client.secret)
    assert known_clients(folder) == {client.public: "h200"}
    assert client.secret not in (repr(client) + repr(server)).encode()


def test_folders_and_files_are_the_owners_only(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_only_what_says_so_holds_a_secret(folder: Path) -> None:
    secrets = {server_keys(folder).secret, client_keys(folder / "for-h200")[1].secret}
    holders = {p.name for p in folder.rglob("*.key*") if any(secret in p.read_bytes() for secret in secrets)}
    assert holders == {"server.key_secret", "client.key_secret"}
    assert not list((folder / "for-h200").glob("server.key_secret"))


def test_a_second_call_keeps_the_fetchers_key_and_adds_clients(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert not make_server_keys(folder)
    make_client_keys(folder, "a100")
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(known_clients(folder).values()) == ["a100", "h200"]


def test_a_client_that_is_there_is_not_overwritten(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(BadInputError, match=r"h200\.key: is there already"):
        make_client_keys(folder, "h200")
    (folder / "clients" / "h200.key").unlink()
    with pytest.raises(BadInputError, match="for-h200: is there already"):
        make_client_keys(folder, "h200")
    del before[folder / "clients" / "h200.key"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_half_a_pair_is_not_made_whole(folder: Path) -> None:
    (folder / "server.key_secret").unlink()
    with pytest.raises(BadInputError, match=r"holds server\.key without its other half"):
        make_server_keys(folder)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "-x", "a" * 65])
def test_a_clients_name_can_not_leave_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(BadInputError, match="expected letters, digits"):
        make_client_keys(folder, name)


def test_a_folder_that_others_can_look_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(BadInputError, match="chmod 700"):
        make_server_keys(tmp_path / "open")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(folder: Path, mode: int) -> None:
    (folder / "server.key_secret").chmod(mode)
    with pytest.raises(BadInputError, match=r"server\.key_secret: others than its owner can read.*chmod 600"):
        server_keys(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        'public-key = "short"',
        f'public-key = "{"~" * 40}"',
        f'public-key = "{"#" * 40}"',  # above 2^32
    ],
)
def test_a_damaged_certificate_is_named_without_its_content(folder: Path, text: str) -> None:
    (folder / "server.key_secret").write_text(text)
    with pytest.raises(BadInputError, match=r"server\.key_secret: holds no public key") as error:
        server_keys(folder)
    assert not text or text not in str(error.value)


def test_a_public_certificate_is_no_secret_one(folder: Path) -> None:
    (folder / "server.key_secret").write_text((folder / "server.key").read_text())
    with pytest.raises(BadInputError, match="holds no secret key"):
        server_keys(folder)


def test_a_folder_without_certificates_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"server\.key_secret: can't be read; `icestream keys` writes"):
        server_keys(tmp_path)
    with pytest.raises(BadInputError, match=r"server\.key: can't be read"):
        client_keys(tmp_path)
    with pytest.raises(BadInputError, match="clients: no such folder"):
        known_clients(tmp_path)


def test_the_command_makes_them_and_says_what_goes_where(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keys"
    result = CliRunner().invoke(keys_command, [str(folder), "--client", "one", "--client", "two"])
    assert result.exit_code == 0, result.output
    assert sorted(known_clients(folder).values()) == ["one", "two"]
    for name in ("one", "two"):
        assert client_keys(folder / f"for-{name}")[0] == server_keys(folder).public
        assert f"{folder}/for-{name}: copy this folder to the trainer's machine" in result.output
    assert server_keys(folder).secret.decode() not in result.output


def test_the_command_makes_one_trainers_keys_unless_told_otherwise(tmp_path: Path) -> None:
    assert CliRunner().invoke(keys_command, [str(tmp_path / "keys")]).exit_code == 0
    assert list(known_clients(tmp_path / "keys").values()) == ["trainer"]
