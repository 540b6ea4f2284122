"""Where tokens are found, in which order, and which one is taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from federation.issuer import Issuer
from token_places import NOW_S, SCOPE, minted, the_need, token_file

from common.pelican.tokens.config import TokenConfig
from common.pelican.tokens.errors import BadTokenError
from common.pelican.tokens.find import Found, TokenPlace, choose, look, places, signatures
from common.pelican.tokens.store import Client, StoredToken, load_token, save, token_folder, token_path
from services.config.root import load_config

FEDERATION = "osg-htc.org"
NAME = f"bt_u{os.geteuid()}"


def stored(token: str, federation: str = FEDERATION, refresh_token: str = "r") -> StoredToken:
    client = Client(issuer="https://issuer.example", client_id="me")
    return StoredToken(
        access_token=token,
        refresh_token=refresh_token,
        scope=SCOPE,
        federation=federation,
        token_endpoint="https://issuer.example/token",
        client=client,
    )


def tokens(environment: dict[str, str], config: TokenConfig | None = None) -> list[str]:
    found = [look(place, environment, FEDERATION) for place in places(config or TokenConfig(), environment)]
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
    kept = stored("kept")
    save(token_path(token_folder(environment), kept), kept)
    assert tokens(environment) == ["variable", "named", "runtime", "shared", "condor", "kept"]
    file = token_file(tmp_path / "flag", "flag")
    assert tokens(environment, TokenConfig(file=file)) == ["flag"]


def test_without_any_place_nothing_is_found(environment: dict[str, str]) -> None:
    assert tokens(environment | {"BEARER_TOKEN": "", "BEARER_TOKEN_FILE": ""}) == []


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


def test_a_file_that_the_user_named_must_be_there(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadTokenError, match="nowhere: no such file"):
        tokens(environment, TokenConfig(file=tmp_path / "nowhere"))
    with pytest.raises(BadTokenError, match=r"BEARER_TOKEN_FILE \(.*nowhere\): no such file"):
        tokens(environment | {"BEARER_TOKEN_FILE": str(tmp_path / "nowhere")})


def test_a_variable_that_holds_no_token_is_named_and_not_quoted(environment: dict[str, str]) -> None:
    with pytest.raises(BadTokenError, match=r"BEARER_TOKEN \(environment\): this is no token") as caught:
        tokens(environment | {"BEARER_TOKEN": "s3cret s3cret"})
    assert "s3cret" not in str(caught.value)


def test_a_stored_token_is_for_its_federation_alone(environment: dict[str, str]) -> None:
    other = stored("other", federation="elsewhere.org")
    save(token_path(token_folder(environment), other), other)
    assert tokens(environment) == []
    mine = stored("mine")
    save(token_path(token_folder(environment), mine), mine)
    assert tokens(environment) == ["mine"]


def test_a_stored_token_comes_back_as_it_was_and_its_repr_has_no_secret(environment: dict[str, str]) -> None:
    token = stored("s3cret", refresh_token="r3fresh").model_copy(
        update={"client": Client(issuer="https://i", client_id="me", client_secret="pa55")}
    )
    path = token_path(token_folder(environment), token)
    save(path, token)
    assert load_token(path) == token
    assert not any(secret in repr(token) for secret in ("s3cret", "r3fresh", "pa55"))


def test_a_stored_file_that_is_broken_is_named_and_not_quoted(environment: dict[str, str]) -> None:
    folder = token_folder(environment)
    save(folder / "token-x.json", stored("s3cret"))
    (folder / "token-x.json").write_text('{"access_token": "s3cret"}')
    with pytest.raises(BadTokenError, match="delete it and run") as caught:
        tokens(environment)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_tokens_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    assert token_folder({"HOME": "/home/me"}) == Path("/home/me/.cache/icestream/tokens")
    assert token_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "/c"}) == Path("/c/icestream/tokens")
    assert token_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "relative"}) == Path("/home/me/.cache/icestream/tokens")


def test_any_change_of_any_place_changes_the_signatures(environment: dict[str, str], tmp_path: Path) -> None:
    seen = {signatures(TokenConfig(), environment)}
    token_file(tmp_path / "shared" / NAME, "one")
    seen.add(signatures(TokenConfig(), environment))
    mine = stored("mine")
    save(token_path(token_folder(environment), mine), mine)
    seen.add(signatures(TokenConfig(), environment))
    assert len(seen) == 3


def found(issuer: Issuer, name: str, scope: str = SCOPE, ttl_s: float = 600, renewable: bool = False) -> Found:
    from common.pelican.tokens.claims import read_claims

    token = minted(issuer, scope, ttl_s)
    return Found(TokenPlace(name), token, read_claims(token), stored(token) if renewable else None)


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([("a", SCOPE, 600, False), ("b", SCOPE, 6000, False)], "a"),
        ([("a", SCOPE, -5, False), ("b", SCOPE, 600, False)], "b"),
        ([("a", "storage.read:/other", 600, False), ("b", SCOPE, 600, False)], "b"),
        ([("a", SCOPE, -5, True), ("b", SCOPE, 600, False)], "b"),
        ([("a", "storage.read:/other", 600, False), ("b", SCOPE, -5, True)], "b"),
        ([("a", SCOPE, -5, False), ("b", "storage.read:/other", 600, False)], "b"),
        ([("a", SCOPE, -5, False), ("b", "storage.read:/other", -5, False)], "a"),
        ([], None),
    ],
)
def test_a_valid_token_that_covers_the_inputs_goes_first_then_the_first_place(
    issuer: Issuer, candidates: list[tuple[str, str, float, bool]], chosen: str | None
) -> None:
    best = choose(
        [found(issuer, *candidate) for candidate in candidates], the_need(), NOW_S, lambda one: one.stored is not None
    )
    assert (best.place.name if best else None) == chosen
    assert best is None or best.token not in repr(best)


def test_the_configuration_takes_a_file_name_and_not_a_token(issuer: Issuer, tmp_path: Path) -> None:
    from common.errors import BadInputError

    nothing: dict[str, str] = {}
    token = minted(issuer)
    with pytest.raises(BadInputError, match="not the token itself") as caught:
        load_config(tmp_path, assignments=[f"token.file={token}"], environment=nothing)
    assert token not in str(caught.value)
    with pytest.raises(BadInputError, match="absolute path without wildcards"):
        load_config(tmp_path, assignments=["token.storage_prefix=icecube/*"], environment=nothing)
    config = load_config(tmp_path, assignments=["token.storage_prefix=/a//b/"], environment=nothing)
    assert config.token.storage_prefix == "/a/b"
