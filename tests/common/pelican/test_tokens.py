"""Tokens: where they are found, what is read of a file, which one is taken, and what a run does as they change."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from federation.issuer import Issuer
from token_places import NOW_S, SCOPE, Clock, a_source, another_user, minted, the_need, token_file

from common.config import TokenConfig
from common.errors import BadInputError
from common.pelican.answers import BadTokenError, TokenExpired
from common.pelican.token_claims import read_claims
from common.pelican.tokens import MAX_FILE_BYTES, Found, TokenPlace, choose, look, places, read_token
from services.config.root import load_config

NAME = f"bt_u{os.geteuid()}"
GETS_ONE = (
    "`pelican credentials token get read pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/testing`,"
    " htgettoken or oidc-agent gets one"
)

pytestmark = pytest.mark.usefixtures("environment")


def tokens(environment: dict[str, str], config: TokenConfig | None = None) -> list[str]:
    found = [look(place, environment) for place in places(config or TokenConfig(), environment)]
    return [one.token for one in found if one is not None]


def test_the_places_are_looked_at_in_their_order(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "condor").mkdir()
    environment |= {
        "BEARER_TOKEN": "variable\n",
        "BEARER_TOKEN_FILE": str(token_file(tmp_path / "named", '{"access_token": "named"}')),
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "_CONDOR_CREDS": str(tmp_path / "condor"),
    }
    token_file(tmp_path / "runtime" / NAME, "runtime")
    token_file(tmp_path / "shared" / NAME, "shared")
    token_file(tmp_path / "condor" / "other.use", "wrong")
    token_file(tmp_path / "condor" / "scitokens.use", "condor")
    assert tokens(environment) == ["variable", "named", "runtime", "shared", "condor"]
    file = token_file(tmp_path / "flag", "flag")
    assert tokens(environment, TokenConfig(file=file)) == ["flag"]


def test_a_file_that_the_user_named_must_be_there(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadTokenError, match="nowhere: no such file"):
        tokens(environment, TokenConfig(file=tmp_path / "nowhere"))
    with pytest.raises(BadTokenError, match=r"BEARER_TOKEN_FILE \(.*nowhere\): no such file"):
        tokens(environment | {"BEARER_TOKEN_FILE": str(tmp_path / "nowhere")})


def test_a_variable_that_holds_no_token_is_named_and_not_quoted(environment: dict[str, str]) -> None:
    with pytest.raises(BadTokenError, match=r"BEARER_TOKEN \(environment\): this is no token") as caught:
        tokens(environment | {"BEARER_TOKEN": "s3cret s3cret"})
    assert "s3cret" not in str(caught.value)


def found(issuer: Issuer, name: str, scope: str = SCOPE, ttl_s: float = 600) -> Found:
    token = minted(issuer, scope, ttl_s)
    return Found(TokenPlace(name), token, read_claims(token))


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([("a", SCOPE, 600), ("b", SCOPE, 6000)], "a"),
        ([("a", SCOPE, -5), ("b", SCOPE, 600)], "b"),
        ([("a", "storage.read:/other", 600), ("b", SCOPE, 600)], "b"),
        ([("a", SCOPE, -5), ("b", "storage.read:/other", 600)], "b"),
        ([("a", SCOPE, -5), ("b", "storage.read:/other", -5)], "a"),
        ([], None),
    ],
)
def test_a_valid_token_that_covers_the_inputs_goes_first_then_the_first_place(
    issuer: Issuer, candidates: list[tuple[str, str, float]], chosen: str | None
) -> None:
    best = choose([found(issuer, *candidate) for candidate in candidates], the_need(), NOW_S)
    assert (best.place.name if best else None) == chosen
    assert best is None or best.token not in repr(best)


def test_the_configuration_takes_a_file_name_and_not_a_token(issuer: Issuer, tmp_path: Path) -> None:
    nothing: dict[str, str] = {}
    token = minted(issuer)
    with pytest.raises(BadInputError, match="not the token itself") as caught:
        load_config(tmp_path, assignments=[f"token.file={token}"], environment=nothing)
    assert token not in str(caught.value)
    with pytest.raises(BadInputError, match="absolute path without wildcards"):
        load_config(tmp_path, assignments=["token.storage_prefix=icecube/*"], environment=nothing)
    config = load_config(tmp_path, assignments=["token.storage_prefix=/a//b/"], environment=nothing)
    assert config.token.storage_prefix == "/a/b"


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("text", ["s3cret", "s3cret\n", '{"access_token": "s3cret", "expires_in": 5}'])
def test_a_token_is_read_from_plain_text_and_from_json(tmp_path: Path, text: str) -> None:
    assert read_token(token_file(tmp_path / "token", text)) == "s3cret"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\xff\xfes3cret", "isn't text"),
        (b'{"token": "s3cret"}', "access_token"),
        (b'{"access_token": "s3cret two"}', "spaces"),
        (b'{"access_token"', "no JSON with the text access_token"),
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
def test_a_file_that_others_can_change_or_exchange_or_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
) -> None:
    path = token_file(tmp_path / "token", "s3cret")
    with another_user(monkeypatch, path), pytest.raises(BadTokenError, match="belongs to user"):
        read_token(path)
    (tmp_path / part).chmod(0o722)
    with pytest.raises(BadTokenError, match=r"\(mode 0722.*can be changed by every user") as caught:
        read_token(path)
    assert "s3cret" not in str(caught.value)


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


# ------------------------------------------------------------------ the token in use


def test_without_a_token_one_goes_without_and_is_told_where_none_was_and_what_gets_one(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    source = a_source(environment, clock)
    assert source.current() is None
    assert source.expires_s is None
    assert not source.refused(None)
    assert source.describe().startswith("no token found (searched: ")
    assert f"shared/{NAME}); {GETS_ONE}; needed: {SCOPE}" in source.describe()
    token = token_file(tmp_path / "shared" / NAME, minted(issuer)).read_text()
    assert source.refused(None), "one that comes later is taken up"
    assert source.current() == token


def test_a_file_that_changes_is_read_again_while_the_old_token_still_lasts(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = minted(issuer), minted(issuer, ttl_s=6000)
    path = token_file(tmp_path / "token", first)
    source = a_source(environment, clock, file=path)
    assert source.current() == first
    assert source.expires_s == NOW_S + 600
    token_file(path, second)
    with caplog.at_level(logging.INFO):
        assert source.current() == second
    assert source.expires_s == NOW_S + 6000
    assert f"new token from {path}" in caplog.text
    assert second not in caplog.text
    assert all(token not in repr(vars(source)) for token in (first, second))


@pytest.mark.parametrize("broken", ["", "half a tok", "{", None])
def test_a_file_that_is_away_or_half_written_costs_nothing_while_its_token_lasts_then_it_is_waited_for(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path, broken: str | None
) -> None:
    first, second = minted(issuer), minted(issuer, ttl_s=6000)
    path = token_file(tmp_path / "token", first)
    source = a_source(environment, clock, file=path)
    assert source.current() == first
    if broken is None:
        path.unlink()
    else:
        token_file(path, broken)
    assert source.current() == first
    clock.now_s += 600 + 250
    for _ in range(3):  # as often as it is retried
        with pytest.raises(TokenExpired) as caught:
            source.current()
    text = str(caught.value)
    assert f"the token of {path} expired 4 min 10 s ago; needed: {SCOPE}; put a new token into this file" in text
    assert GETS_ONE in text
    assert first not in text
    token_file(path, second)
    assert source.current() == second


def test_before_the_start_an_expired_token_is_an_error(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    expired = minted(issuer, ttl_s=-100)
    source = a_source(environment | {"BEARER_TOKEN": expired}, clock)
    with pytest.raises(
        BadTokenError, match=r"BEARER_TOKEN \(environment\) expired 1 min 40 s ago.*--token-file"
    ) as caught:
        source.check()
    assert expired not in str(caught.value)
    good = a_source(environment | {"BEARER_TOKEN": minted(issuer)}, clock)
    assert good.check() == (
        f"BEARER_TOKEN (environment): {SCOPE}; for any server, by https://issuer.example; expires in 10 min"
    )
    other = a_source(environment | {"BEARER_TOKEN": minted(issuer, "storage.read:/other")}, clock)
    assert other.check().endswith(f"needed: {SCOPE}")


def test_a_broken_place_that_was_named_stops_at_the_start_and_another_is_passed_over(
    environment: dict[str, str], clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = token_file(tmp_path / "shared" / NAME, "two words")
    source = a_source(environment, clock, file=broken)
    for _ in range(2):
        with pytest.raises(BadTokenError, match="no token"):
            source.current()
    by_chance = a_source(environment, clock)
    assert by_chance.current() is None
    assert "this is no token" in by_chance.describe()
    assert "this is no token" in caplog.text


def test_a_refused_token_gives_way_to_each_other_one_once(
    environment: dict[str, str], clock: Clock, issuer: Issuer, tmp_path: Path
) -> None:
    first, second, third = (minted(issuer) for _ in range(3))
    path = token_file(tmp_path / "shared" / NAME, second)
    source = a_source(environment | {"BEARER_TOKEN": first}, clock)
    assert source.current() == first
    assert source.refused(first)
    assert source.current() == second
    assert source.refused(first)  # another transfer comes late with the old one
    assert not source.refused(second)
    assert not source.refused(first)
    assert not source.refused(second)
    assert source.current() in (first, second)
    token_file(path, third)
    assert source.refused(first)
    assert source.current() == third


def test_condors_only_or_first_token_is_taken_where_none_is_called_scitokens(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "condor"
    environment["_CONDOR_CREDS"] = str(folder)
    assert tokens(environment) == []
    folder.mkdir()
    token_file(folder / "b.use", "b")
    token_file(folder / "b.top", "no")
    assert tokens(environment) == ["b"]
    token_file(folder / "a.use", "a")
    assert tokens(environment) == ["a"]
