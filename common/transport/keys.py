"""CURVE certificates: authentication of trainers at a fetcher over tcp, and of the fetcher at a trainer.

    DIR/server.key              the fetcher's public key
    DIR/server.key_secret       the fetcher's secret key: never leaves its machine
    DIR/clients/NAME.key        public keys of the admitted trainers
    DIR/for-NAME/               for the trainer's machine: server.key, client.key and client.key_secret

The files have the format of zmq.auth. Secrets are readable by their owner only, and refused otherwise.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth
from zmq.utils import z85

from common.errors import BadInputError
from common.private_path import make_for_owner, require_private

SERVER = "server"
CLIENT = "client"
CLIENT_FOLDER = "clients"
_KEY_BYTES = 40  # 32, written in Z85
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")


@dataclass(frozen=True)
class KeyPair:
    """CURVE certificate, both keys in Z85."""

    public: bytes
    secret: bytes = field(repr=False)


# ------------------------------------------------------------------ creation


def make_server_keys(folder: Path) -> bool:
    """Write the fetcher's certificate; returns False if there is one already."""
    _make_folder(folder)
    _make_folder(folder / CLIENT_FOLDER)
    there = [name for name in (f"{SERVER}.key", f"{SERVER}.key_secret") if (folder / name).exists()]
    if len(there) == 1:
        raise BadInputError(f"{folder}: holds {there[0]} without its other half; restore it, or name another folder")
    if there:
        return False
    _write_pair(folder, SERVER)
    return True


def make_client_keys(folder: Path, name: str) -> Path:
    """Write the certificate of an admitted trainer and return the trainer's folder. Nothing is overwritten."""
    if not _NAME.fullmatch(name):
        raise BadInputError(f"--client {name}: expected letters, digits, - and _, 64 at most")
    known, bundle = folder / CLIENT_FOLDER / f"{name}.key", folder / f"for-{name}"
    for path in (known, bundle):
        if path.exists():
            raise BadInputError(f"{path}: is there already; choose another --client, or delete it first")
    server = (folder / f"{SERVER}.key").read_text()
    _make_folder(bundle)
    _write(bundle / f"{SERVER}.key", server)
    public = _write_pair(bundle, CLIENT)
    _write(known, public)
    return bundle


def _make_folder(folder: Path) -> None:
    try:
        make_for_owner(folder)
    except OSError as error:
        raise BadInputError(f"{folder}: can't make this folder ({error.strerror})") from None
    require_private(folder, "the folder of keys")
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise BadInputError(f"{folder}: others than its owner can look into it; `chmod 700 {folder}`, or name another")


def _write_pair(folder: Path, name: str) -> str:
    """Write a key pair and return the text of the public certificate."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    text = f'#   ZeroMQ CURVE public certificate\nmetadata\ncurve\n    public-key = "{public}"\n'
    _write(folder / f"{name}.key", text)
    head = "#   ZeroMQ CURVE **secret** certificate: give it to nobody\nmetadata\ncurve\n"
    _write(folder / f"{name}.key_secret", f'{head}    public-key = "{public}"\n    secret-key = "{secret}"\n')
    return text


def _write(path: Path, text: str) -> None:
    """Write a new file, readable by the owner only from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


# ------------------------------------------------------------------ use


def server_keys(folder: Path) -> KeyPair:
    """Certificate of the fetcher. Raises BadInputError that names the file."""
    return _load_secret(folder / f"{SERVER}.key_secret")


def client_keys(folder: Path) -> tuple[bytes, KeyPair]:
    """Public key of the fetcher, and a trainer's certificate. Raises BadInputError that names the file."""
    return _load_public(folder / f"{SERVER}.key"), _load_secret(folder / f"{CLIENT}.key_secret")


def known_clients(folder: Path) -> dict[bytes, str]:
    """Public keys of the admitted trainers, with their names. Raises BadInputError that names a bad file."""
    clients = folder / CLIENT_FOLDER
    if not clients.is_dir():
        raise BadInputError(f"{clients}: no such folder; `icestream keys {folder}` makes it")
    require_private(clients, "the folder of keys")
    return {_load_public(path): path.stem for path in sorted(clients.glob("*.key"))}


def _load_secret(path: Path) -> KeyPair:
    public, secret = _load(path)
    if secret is None or not _is_key(secret):
        raise BadInputError(f"{path}: holds no secret key; `icestream keys` writes such files")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise BadInputError(f"{path}: others than its owner can read this secret; `chmod 600 {path}`")
    return KeyPair(public, secret)


def _load_public(path: Path) -> bytes:
    return _load(path)[0]


def _load(path: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except ValueError:
        public, secret = b"", None
    except OSError:
        raise BadInputError(f"{path}: can't be read; `icestream keys` writes such files") from None
    require_private(path, "the key")
    if not _is_key(public):
        raise BadInputError(f"{path}: holds no public key; `icestream keys` writes such files")
    return public, secret


def _is_key(text: bytes) -> bool:
    """True for 32 bytes in Z85, which ZeroMQ would otherwise refuse with EINVAL."""
    if len(text) != _KEY_BYTES:
        return False
    try:
        return len(z85.decode(text)) == 32
    except (KeyError, struct.error):
        return False
