"""pelicanfs, unmodified, on the light federation and on real XRootD; and what tokens are answered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest

from .client import client_options, with_client
from .federation import Federation
from .issuer import Issuer

EVERYTHING = "storage.read:/ storage.create:/ storage.modify:/"
NewFilesystem = Callable[..., Any]


@pytest.fixture
def filesystem(federation: Federation) -> NewFilesystem:
    for name in ("public", "private"):
        for i in range(3):
            if not (federation.root / f"{name}/ds/p{i}.bin").exists():
                federation.put(f"/{name}/ds/p{i}.bin", bytes([i]) * 200_000)

    def make(**options: Any) -> Any:
        options |= client_options(federation.certs.ca_pem)
        return fsspec.filesystem(
            "pelican", federation_discovery_url=federation.discovery, skip_instance_cache=True, **options
        )

    return make


def test_a_directory_is_listed_and_its_files_are_read(filesystem: NewFilesystem) -> None:
    fs = filesystem()
    assert fs.find("/public/ds") == [f"/public/ds/p{i}.bin" for i in range(3)]
    assert fs.cat_file("/public/ds/p1.bin") == b"\1" * 200_000
    assert fs.cat_file("/public/ds/p2.bin", start=5, end=9) == b"\2" * 4


def test_a_glob_lists_each_directory_and_sizes_cost_nothing(filesystem: NewFilesystem, federation: Federation) -> None:
    found = filesystem().glob("/public/ds/*.bin", detail=True)
    assert {name: entry["size"] for name, entry in found.items()} == {f"/public/ds/p{i}.bin": 200_000 for i in range(3)}
    assert federation.requests()["origin PROPFIND"] <= 2


def test_a_thousand_links_are_listed_with_one_request(federation: Federation, filesystem: NewFilesystem) -> None:
    federation.put_many("/public/many", (f"{i:07d}.bin" for i in range(1000)), b"1234567")
    fs = filesystem()
    federation.log.clear()
    entries = fs.ls("/public/many", detail=True)
    assert len(entries) == 1000
    assert {entry["size"] for entry in entries} == {7}
    assert federation.requests()["origin PROPFIND"] == 1


def test_a_file_is_put_with_a_token(filesystem: NewFilesystem, federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    token = federation.issuer.mint(EVERYTHING)
    fs = filesystem(headers={"Authorization": f"Bearer {token}"})
    fs.put_file(str(tmp_path / "new"), f"/private/up/{federation.kind}.bin")
    assert (federation.root / f"private/up/{federation.kind}.bin").read_bytes() == b"new"


@pytest.mark.process
def test_an_unmodified_process_reads_with_the_token_of_its_environment(
    filesystem: NewFilesystem, federation: Federation, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(federation.issuer.mint(EVERYTHING))
    code = (
        "import fsspec, sys; fs = fsspec.filesystem('pelican', federation_discovery_url=sys.argv[1]);"
        "print(len(fs.cat_file('/private/ds/p0.bin')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, federation.discovery],
        env={**federation.environment(), "BEARER_TOKEN_FILE": str(tmp_path / "token")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.stdout.strip() == "200000", done.stderr


TOKENS: dict[str, tuple[str, float]] = {
    "right": ("storage.read:/sim/testing", 600),
    "whole": ("storage.read:/", 600),
    "other directory": ("storage.read:/sim/production", 600),
    "full path in place of the one below the base path": ("storage.read:/icecube/wipac/sim/testing", 600),
    "no reading": ("storage.create:/", 600),
    "expired": ("storage.read:/", -60),
}


@pytest.mark.parametrize("which", [*TOKENS, "none", "opaque", "of another issuer"])
def test_a_token_is_judged_by_scope_below_the_base_path(federation: Federation, which: str) -> None:
    path = "/icecube/wipac/sim/testing/a.bin"
    if not (federation.root / path.lstrip("/")).exists():
        federation.put(path, b"1234")
    tokens = {name: federation.issuer.mint(scope, ttl=ttl_s) for name, (scope, ttl_s) in TOKENS.items()}
    tokens |= {"opaque": "abc", "of another issuer": Issuer("https://localhost:1").mint("storage.read:/")}
    token = tokens.get(which)
    expected = 200 if which in ("right", "whole") else 403
    assert status_of(federation, federation.caches[0].url + path, token) == expected
    assert status_of(federation, federation.origin.url + path, token) == expected
    assert status_of(federation, federation.director.url + path, token) == (401 if which == "expired" else 307)


def status_of(federation: Federation, url: str, token: str | None) -> int:
    async def ask(session: aiohttp.ClientSession) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status

    return with_client(federation.certs, ask)
