"""Every parser of what comes from elsewhere, on anything: an answer, None, or one of the expected errors."""

from __future__ import annotations

import tracemalloc

import pytest
from hostile_values import ANY, DEEP, FEW, FUZZ, NUMBERS, PATH, URLS, listing_of
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from common.errors import BadInputError, TransientError
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.pelican import answers
from common.pelican.client import parse_sources, single
from common.pelican.url import PelicanUrl, may_get_token, server_address


@FUZZ
@given(NUMBERS | ANY)
def test_a_size_is_a_bounded_number_of_ascii_digits_or_nothing(text: str) -> None:
    value = answers.number(text)
    assert value is None or (0 <= value <= answers.MAX_SIZE_BYTES and text.isascii() and text.isdigit())


@FUZZ
@given(URLS)
def test_an_address_is_one_that_can_be_asked_or_is_refused(text: str) -> None:
    from yarl import URL

    server = server_address(text)
    assert may_get_token(text) in (True, False)
    if server:
        url = URL(server + "/x", encoded=True)
        assert url.host
        assert url.user is None
        assert url.password is None
        assert server.isascii()
        assert server.isprintable()
    try:
        place = PelicanUrl.parse(text.replace("https:", "pelican:"))
    except BadInputError as error:
        str(error).encode()
    else:
        assert URL(f"https://{place.federation}/x").host


FIELDS = ["namespace=/ns", "namespace=", "require-token=true", "require-token=²", "issuer=https://i", "base-path=/x"]
FIELD = st.one_of(
    st.sampled_from(FIELDS),
    st.builds("collections-url={}".format, URLS),
    st.builds("issuer={}".format, URLS),
    st.builds("max-scope-depth={}".format, NUMBERS),
    ANY,
)
HEADER = st.lists(FIELD, max_size=5).map(", ".join)
LINK = st.builds("<{}{}>; pri={}".format, URLS, st.sampled_from([PATH, "", "?x"]), NUMBERS) | ANY


@FUZZ
@given(st.lists(LINK, max_size=4).map(", ".join), st.lists(HEADER, max_size=2), HEADER, HEADER, st.booleans())
def test_a_directors_headers_are_read_or_passed_over(
    link: str, issuers: list[str], namespace: str, generation: str, writes: bool
) -> None:
    headers = CIMultiDict([("Link", link), ("X-Pelican-Namespace", namespace)])
    headers.extend([("X-Pelican-Authorization", text) for text in issuers])
    headers.add("X-Pelican-Token-Generation", generation)
    sources = parse_sources(single(CIMultiDictProxy(headers)), PATH, writes=writes)
    for server in (*sources.servers, *filter(None, [sources.collections])):
        assert server_address(server) == server
        assert may_get_token(server) or not (sources.require_token or writes)
    assert sources.namespace == "" or PATH.startswith(sources.namespace)
    assert sources.base_path == "" or sources.base_path.startswith("/")


@FUZZ
@given(st.builds("{}={}".format, st.sampled_from(["adler32", "md5", "sha256", "x", ""]), NUMBERS | ANY) | ANY)
def test_a_checksum_can_be_compared_or_is_none(text: str) -> None:
    told = answers.from_digest(text)
    assert told == "" or answers.is_checksum(told)
    if answers.is_checksum(text):
        assert answers.matches(text, answers.hasher(text)) in (True, False)


def responses(*inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(*inner), max_size=5).map("".join)


HREFS = st.sampled_from(
    ["/d/a", "/d/b/", "/d", "/d/%ff", "/d/%", "/d/..", "https://h/d/c", "/d/&#x1b;", "/d/&#xD800;", ""]
)
PROPS = responses(
    st.builds("<D:getcontentlength>{}</D:getcontentlength>".format, NUMBERS),
    st.sampled_from(["<D:collection/>", "<D:iscollection>1</D:iscollection>", "<D:href>/d/z</D:href>", "<x/>", "&b;"]),
)
RESPONSE = st.builds("<D:response><D:href>{}</D:href>{}</D:response>".format, HREFS, PROPS)
XML = st.builds(
    '{}<D:multistatus xmlns:D="DAV:">{}{}'.format,
    st.sampled_from(["", '<?xml version="1.0" encoding="utf-16"?>', "<!DOCTYPE x>", '<!DOCTYPE a [<!ENTITY b "c">]>']),
    responses(RESPONSE, st.sampled_from(["<D:response/>", "<a>", "</a>", "<!-- x -->", "x"])),
    st.sampled_from(["</D:multistatus>", "", "</x>"]),
)


@FUZZ
@given(XML, st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-32", "latin-1"]), st.booleans())
def test_a_listing_has_names_and_sizes_or_is_none(text: str, encoding: str, raw: bool) -> None:
    try:
        listing = listing_of(text.encode(encoding, "replace"), "/d", raw_names=raw)
    except answers.MalformedListing as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert "DOCTYPE" not in text
    for entry in listing.entries:
        assert "/" not in entry.name
        assert entry.name not in ("", ".", "..")
        assert 0 <= entry.size_bytes <= answers.MAX_SIZE_BYTES
        assert entry.name.isprintable()


START = b'<D:multistatus xmlns:D="DAV:">'
NUM = 1 << 19
BOMBS = {
    "elements": START + b"<a/>" * (NUM // 4),
    "depth": START + b"<a>" * (NUM // 3),
    "attributes": START + b"<a " + b" ".join(b'a%d=""' % i for i in range(NUM // 12)) + b"/>",
    "kinds": START + b"".join(b"<a%d/>" % i for i in range(NUM // 10)),
    "prefixes": START + b"".join(b'<a xmlns:n%d="u"/>' % i for i in range(NUM // 24)),
    "text": START + b"x" * NUM,
    "name": START + b"<D:response><D:href>" + b"x" * NUM,
    "empty": START + b"<D:response/>" * (NUM // 13),
    "comment": START + b"<!--" + b"x" * NUM,
    "refused": START + b"<D:response><D:href>/e</D:href></D:response>" * (NUM // 45) + b"</D:multistatus>",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_listing_of_half_a_megabyte_takes_more_than_four(bomb: str) -> None:
    tracemalloc.start()
    try:
        listing_of(BOMBS[bomb], "/d", raw_names=False)
    except answers.MalformedListing:
        pass
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


LINES = st.lists(
    st.one_of(
        st.builds(
            "{}\t{}\t{}".format, URLS, NUMBERS, st.sampled_from(["", "md5=é", "adler32=1", "sha1=x", "md5="]) | ANY
        ),
        st.builds("pelican://127.0.0.1:9/x\t{}".format, NUMBERS),
        st.just("@other.txt"),
        st.just("# comment"),
    ),
    max_size=4,
)


@FEW
@given(LINES)
@example(["https://h/\0\t0\t"])
def test_a_list_file_names_files_with_sizes_or_is_an_error_of_the_user(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    from services.config.root import Config

    path = tmp_path_factory.getbasetemp() / "list.txt"
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
    with Remotes(Config().remote_access()) as remotes:
        try:
            files = expand([f"@{path}"], remotes)
        except BadInputError as error:
            assert "list.txt" in str(error)  # noqa: PT017
            return
        except TransientError:  # one without a size is asked for, and nobody is there
            return
    assert sum(file.size_bytes for file in files) <= answers.MAX_SIZE_BYTES
    assert all(not file.checksum or answers.is_checksum(file.checksum) for file in files)


def test_json_of_any_depth_is_no_object() -> None:
    for text in (DEEP, '{"a":' * 50_000, "9" * 5000, b"\xff\xfe"):
        assert answers.json_object(text) is None
