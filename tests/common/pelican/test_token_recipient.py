"""A token goes to the namespace that it was made for, and to no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from federation.federation import Federation
from federation.issuer import Issuer
from hypothesis import given, settings
from hypothesis import strategies as st
from token_places import token_file

from common.config import TokenConfig
from common.pelican.answers import DeniedError, UnavailableError
from common.pelican.threads import PelicanThread
from common.pelican.token_claims import Consent, Need, Recipient, Scope, TokenClaims, needs, why_not
from common.pelican.tokens import FoundTokens
from common.pelican.transfers import upload

ANY = "https://wlcg.cern.ch/jwt/v1/any"
ISSUERS = ["https://i.org", "https://i.org/x", "https://other.org", ""]
FEDERATIONS = ["fed.org", "evil.org", "Fed.org", ""]
AUDIENCES = [ANY, "ANY", "https://cache.org:8443", "cache.org", "https://cache.org", "evil.org:8443", "fed.org", "x"]
SCOPES = ["storage.read:/d", "storage.read:/", "storage.read:/ns/d", "storage.read:/e", "storage.modify:/d"]


CLAIMS = st.builds(
    TokenClaims,
    issuer=st.sampled_from(ISSUERS),
    scopes=st.none() | st.frozensets(st.sampled_from(SCOPES).map(lambda text: Scope(*text.split(":"))), max_size=3),
    audience=st.lists(st.sampled_from(AUDIENCES), max_size=2).map(tuple),
)
RECIPIENTS = st.builds(
    Recipient,
    federation=st.sampled_from(["fed.org", "evil.org"]),
    server=st.sampled_from(["https://cache.org:8443", "https://evil.org:8443/p"]),
    path=st.sampled_from(["/ns/d/a.parquet", "/ns/d"]),
    issuers=st.lists(st.sampled_from(ISSUERS[:3]), max_size=2).map(tuple),
    base_path=st.sampled_from(["", "/ns"]),
    writes=st.booleans(),
)
CONSENTS = st.builds(Consent, federation=st.sampled_from(FEDERATIONS), may_write=st.booleans())


@settings(max_examples=200, deadline=None)
@given(CLAIMS, RECIPIENTS, CONSENTS)
def test_a_token_is_sent_only_where_issuer_audience_and_scopes_fit(
    claims: TokenClaims, to: Recipient, consent: Consent
) -> None:
    named = consent.federation.lower()
    host = to.server.removeprefix("https://").partition("/")[0]
    bare = host.partition(":")[0]
    takes = {ANY, "ANY", host, bare, f"https://{host}", f"https://{bare}", to.federation}
    allows = {("storage.modify", "/d"), ("storage.modify", "/")} if to.writes else {("storage.read", "/")}
    allows |= {("storage.read", "/d"), ("storage.read", "/ns/d")} if not to.writes else set()
    if to.base_path != "/ns":
        allows -= {("storage.read", "/d"), ("storage.modify", "/d")}
    scopes = claims.scopes
    fits = (
        named in ("", to.federation)
        and (bool(named) or scopes is not None)
        and (scopes is None or (claims.issuer in to.issuers if to.issuers else bool(named)))
        and (scopes is None or not claims.audience or bool(set(claims.audience) & takes))
        and (scopes is None or any((one.permission, one.path) in allows for one in scopes))
        and (consent.may_write or not any(one.permission == "storage.modify" for one in scopes or ()))
    )
    assert (why_not(claims, to, consent) == "") is fits, why_not(claims, to, consent)


@given(st.text(max_size=30), st.sampled_from(["", "https://", ":", "/", "https:///", "http://[::1", "https://x:99999"]))
@settings(max_examples=50, deadline=None)
def test_no_odd_audience_is_taken_for_everybody(tail: str, head: str) -> None:
    claims = TokenClaims("https://i.org", frozenset([Scope("storage.read", "/")]), (head + tail,))
    to = Recipient("fed.org", "https://cache.org", "/d", ("https://i.org",))
    if head + tail not in AUDIENCES and not (head + tail).lower().strip("/").endswith(("cache.org", "fed.org")):
        assert why_not(claims, to, Consent()) != ""


# ------------------------------------------------------------------ with a federation


class Run:
    """What a run in this federation has of tokens."""

    def __init__(
        self, federation: Federation, environment: dict[str, str], connect: Callable[..., PelicanThread]
    ) -> None:
        self.federation, self.environment, self.connect = federation, environment, connect
        federation.put("/private/r/a.parquet", b"12345")
        federation.log.clear()

    def thread(self, *, writes: bool = False, **config: object) -> PelicanThread:
        inputs = [self.federation.url("/private/r/*.parquet")]
        need = needs(inputs, storage_prefix="/private")[0]
        need = Need(need.federation, need.scopes, writes)
        settings = TokenConfig.model_validate({"storage_prefix": "/private", **config})
        return self.connect(None, lambda host: FoundTokens(need, settings, environment=self.environment))

    def listed(self, **config: object) -> list[str]:
        url = self.federation.url("/private/r/*.parquet")
        return [name.rpartition("/")[2] for name, _ in self.thread(**config).expand(url, (".parquet",))]

    @property
    def sent(self) -> set[str]:
        """Authorization headers that any server saw."""
        return {entry["auth"] for entry in self.federation.log if entry["auth"]}


@pytest.fixture
def run(federation: Federation, environment: dict[str, str], connect: Callable[..., PelicanThread]) -> Run:
    return Run(federation, environment, connect)


def test_a_token_of_another_issuer_never_leaves_the_process_and_the_message_says_why(run: Run, tmp_path: Path) -> None:
    token = Issuer("https://elsewhere.example").mint("storage.read:/ storage.modify:/secret")
    run.environment["BEARER_TOKEN"] = token
    url = run.federation.url("/private/r/a.parquet")
    with pytest.raises(UnavailableError) as caught:
        run.listed()
    with pytest.raises(UnavailableError):
        run.thread().download(url, tmp_path / "a", 5)
    assert run.sent == set()
    assert "BEARER_TOKEN (environment)" in str(caught.value)
    run.environment["BEARER_TOKEN"] = Issuer("https://elsewhere.example").mint("storage.read:/")
    with pytest.raises(
        UnavailableError, match=r"of https://elsewhere\.example, .* takes those of https://localhost:\d+/issuer; `pelic"
    ):
        run.listed()
    assert run.sent == set()


def test_a_token_that_may_also_write_is_sent_only_if_the_user_names_its_file_or_the_run_writes(
    run: Run, tmp_path: Path
) -> None:
    token = run.federation.issuer.mint("storage.read:/r storage.modify:/r")
    run.environment["BEARER_TOKEN"] = token
    with pytest.raises(UnavailableError, match=r"also allows storage\.modify:/r.*--token-file"):
        run.listed()
    assert run.sent == set()
    assert run.listed(writes=True) == ["a.parquet"]
    run.federation.log.clear()
    assert run.listed(file=token_file(tmp_path / "token", token)) == ["a.parquet"]
    assert run.sent == {f"Bearer {token}"}


@pytest.mark.parametrize("federation_name", ["", "osg-htc.org"])
def test_an_opaque_token_goes_nowhere_but_to_the_federation_that_the_user_names(run: Run, federation_name: str) -> None:
    run.environment["BEARER_TOKEN"] = "s3cret-opaque"
    with pytest.raises(
        UnavailableError, match=r"token\.federation=localhost|for the federation osg-htc\.org"
    ) as caught:
        run.listed(federation=federation_name)
    assert "s3cret" not in str(caught.value)
    assert run.sent == set()
    with pytest.raises(DeniedError):  # its servers know the token not, but they see it
        run.listed(federation=run.federation.discovery_host)
    assert run.sent == {"Bearer s3cret-opaque"}


def test_a_write_needs_a_token_that_may_write_and_gets_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    url = run.federation.url("/private/r")
    run.environment["BEARER_TOKEN"] = run.federation.issuer.mint("storage.read:/r")
    with pytest.raises(UnavailableError, match=r"doesn't allow storage\.(create|modify):/r"):
        run.thread(writes=True).run(lambda federation: upload(federation, "/private/r/b", tmp_path / "file"), url)
    assert run.sent == set()
    run.environment["BEARER_TOKEN"] = run.federation.issuer.mint("storage.read:/r storage.modify:/r")
    run.thread(writes=True).run(lambda federation: upload(federation, "/private/r/b", tmp_path / "file"), url)
    assert (run.federation.root / "private/r/b").read_bytes() == b"x"


def test_two_namespaces_of_a_federation_get_each_their_own_token(environment: dict[str, str], tmp_path: Path) -> None:
    first, second = Issuer("https://one.org"), Issuer("https://two.org")
    environment["BEARER_TOKEN"] = first.mint("storage.read:/")
    environment["BEARER_TOKEN_FILE"] = str(token_file(tmp_path / "token", second.mint("storage.read:/")))
    source = FoundTokens(Need("fed.org", (Scope("storage.read", "/"),)), TokenConfig(), environment=environment)
    to = [Recipient("fed.org", "https://cache.org", "/d", (issuer.url,)) for issuer in (first, second)]
    expected = [environment["BEARER_TOKEN"], (tmp_path / "token").read_text()]
    assert [source.current(to[number % 2]) for number in range(6)] == expected * 3
