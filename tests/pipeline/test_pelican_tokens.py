"""Whole runs that need a token: one that will not do, one that is renewed, and none that is shown."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest
from federation.federation import Federation
from runs import Processes, settings
from served import (
    ONLY_LIGHT,
    Served,
    arguments,
    assert_refused,
    environment,
    problem,
    served,
    start_impatient,
)
from showers import Showers, Undisturbed

__all__ = ["environment", "served"]


pytestmark = pytest.mark.slow


@pytest.fixture
def private(federation: Federation, showers: Showers, tmp_path: Path) -> Served:
    return Served(federation, showers, tmp_path / "private", "/icecube/wipac/sim")


SCOPE = "storage.read:/sim"


@ONLY_LIGHT
@pytest.mark.parametrize(
    ("scope", "ttl", "told"),
    [(None, 0, "no token"), (SCOPE, -100, "expired"), ("storage.read:/elsewhere", 600, "storage.read:/sim")],
)
def test_a_token_that_will_not_do_ends_the_start_with_guidance(
    processes: Processes,
    private: Served,
    environment: dict[str, str],
    tmp_path: Path,
    scope: str | None,
    ttl: int,
    told: str,
) -> None:
    token = private.federation.issuer.mint(scope or "", ttl=ttl)
    flags = token_flags(tmp_path, token) if scope else []
    outcome = processes.run("run", *arguments(private, *flags), environment=environment)
    assert_refused(processes, outcome, told)
    assert_nowhere(processes, token)


@ONLY_LIGHT
def test_a_token_is_renewed_in_mid_run_and_never_told(
    processes: Processes,
    private: Served,
    environment: dict[str, str],
    undisturbed: Undisturbed,
    tmp_path: Path,
) -> None:
    mint = private.federation.issuer.mint
    first, last = mint(SCOPE, ttl=3600), mint(SCOPE, ttl=3601)
    for cache in private.federation.caches:  # until a token has expired
        cache.fault("status", 503, match=private.path)
    flags = [*token_flags(tmp_path, first), *settings("token.margin_s=0")]
    run = start_impatient(processes, arguments(private, *flags), environment)
    processes.wait_in(run, lambda: "503" in problem(processes), "the caches' failing")
    second = mint(SCOPE, ttl=3)
    token_flags(tmp_path, second)
    processes.wait_in(run, lambda: "expired" in problem(processes), "the pause to be told")
    private.federation.heal()
    token_flags(tmp_path, last)
    processes.release()
    assert processes.finish(run) == 0, processes.report()
    undisturbed.assert_same_stream(processes)
    expires_s = jwt.decode(last, options={"verify_signature": False})["exp"]
    assert processes.fetcher.token_expires_s == expires_s, "status and /metrics tell the end of the token in use"
    assert not processes.summary()["quarantined"]
    for token in (first, second, last):
        assert_nowhere(processes, token)
    assert all(token not in str(entry["query"]) for token in (first, second, last) for entry in private.federation.log)


def token_flags(folder: Path, token: str) -> list[str]:
    part = folder / "token.part"
    part.touch(0o600)
    part.write_text(token + "\n")
    part.replace(folder / "token")
    return ["--token-file", str(folder / "token")]


def assert_nowhere(processes: Processes, token: str) -> None:
    """Neither the token nor its signature is in an output, a file or its name."""
    secrets = [token.encode(), token.rpartition(".")[2].encode()]
    for path in [*(process.output_path for process in processes.started), *processes.run_dir.rglob("*")]:
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret in content or secret in str(path).encode() for secret in secrets), path
