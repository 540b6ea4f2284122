"""Listings and globs: one request a directory, hostile names refused, nothing hangs, every failure with guidance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from federation.federation import Federation
from federation.fixtures import BOTH_KINDS
from hostile_values import listing_of

from common.errors import BadInputError
from common.pelican.answers import DeniedError, MalformedListing, NotFoundError, UnavailableError
from common.pelican.client import TIMEOUT_S
from common.pelican.threads import PelicanThread

SHORT = pytest.mark.parametrize("thread", [1.0], indirect=True)
"""Timeout for servers that never answer; of a loaded machine others may be silent for a while."""
SUFFIXES = (".parquet",)
Names = Callable[[str], list[tuple[str, int]]]


@pytest.fixture
def thread(
    connect: Callable[..., PelicanThread], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> PelicanThread:
    monkeypatch.setattr("common.pelican.client._LIST_TRIES", 2)
    return connect(timeout_s=getattr(request, "param", TIMEOUT_S))


@pytest.fixture
def tree(federation: Federation, request: pytest.FixtureRequest) -> str:
    """A tree with three ranges of files of different sizes; the path of its root."""
    root = f"/public/tree{abs(hash(request.node.name))}"
    for name, size in (("r0/a.parquet", 1), ("r0/b.parquet", 2), ("r0/notes.txt", 3), ("r1/c.parquet", 4)):
        federation.put(f"{root}/{name}", b"x" * size)
    federation.put(f"{root}/r1/deep/er/d.parquet", b"x" * 5)
    federation.put(f"{root}/r1/.hidden/e.parquet", b"x")
    federation.make_directory(f"{root}/empty")
    federation.log.clear()
    return root


@pytest.fixture
def names(federation: Federation, thread: PelicanThread, tree: str) -> Names:
    """Name below the tree, and size, of each file that a pattern matches."""
    url = federation.url(tree)

    def expanded(pattern: str) -> list[tuple[str, int]]:
        return [(name.removeprefix(f"{url}/"), size) for name, size in thread.expand(f"{url}/{pattern}", SUFFIXES)]

    return expanded


def num_listings(federation: Federation) -> int:
    return sum(entry["method"] == "PROPFIND" and entry["server"] == "origin" for entry in federation.log)


@BOTH_KINDS
@pytest.mark.parametrize(
    ("pattern", "expected", "listings"),
    [
        ("r0/*.parquet", [("r0/a.parquet", 1), ("r0/b.parquet", 2)], 1),
        ("r?/*.parquet", [("r0/a.parquet", 1), ("r0/b.parquet", 2), ("r1/c.parquet", 4)], 3),
        (
            "**/*.parquet",
            [("r0/a.parquet", 1), ("r0/b.parquet", 2), ("r1/c.parquet", 4), ("r1/deep/er/d.parquet", 5)],
            6,
        ),
        ("r[1-9]/**/d.parquet", [("r1/deep/er/d.parquet", 5)], 4),
        ("r0/a.parquet", [("r0/a.parquet", 1)], 1),
        ("r1", [("r1/c.parquet", 4), ("r1/deep/er/d.parquet", 5)], 3),
    ],
)
def test_a_glob_costs_one_listing_a_directory_and_none_a_file(
    federation: Federation, names: Names, pattern: str, expected: list[tuple[str, int]], listings: int
) -> None:
    assert names(pattern) == expected
    assert num_listings(federation) == listings
    assert not [entry for entry in federation.log if entry["method"] in ("HEAD", "GET") and "cache" in entry["server"]]


@pytest.mark.parametrize(("pattern", "num_hidden"), [("r0", 2), ("r0/*", 2), ("r0/**", 2), ("r0/**/*.parquet", 1)])
def test_unfinished_and_hidden_names_of_a_federation_are_no_inputs_which_is_said_once(
    federation: Federation, names: Names, tree: str, pattern: str, num_hidden: int, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_b.parquet", "_SUCCESS", "_temporary/c.parquet"):
        federation.put(f"{tree}/r0/{name}", b"x")
    found = [name for name, _ in names(pattern) if name.endswith(".parquet")]
    assert found == ["r0/a.parquet", "r0/b.parquet"]
    (told,) = caplog.messages
    assert f'left out {num_hidden} with a name that begins with "." or "_", the first is {tree}/r0/_b.parquet' in told
    for pattern in ("r0/_b.parquet", "r0/_*.parquet", "r0/_temporary", "r0/_t*/*"):
        assert len(names(pattern)) == 1
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("pattern", ["nowhere/*.parquet", "r0/*.h5", "empty/*.parquet", "r0/z.parquet", "empty"])
def test_nothing_there_is_not_found(names: Names, pattern: str) -> None:
    with pytest.raises(NotFoundError, match=r"no such file or directory|no file"):
        names(pattern)


def test_progress_is_told(federation: Federation, thread: PelicanThread, tree: str) -> None:
    told: list[tuple[int, int]] = []
    thread.expand(federation.url(f"{tree}/r?/*.parquet"), SUFFIXES, lambda *numbers: told.append(numbers))
    assert told == [(1, 0), (3, 3)]


@SHORT
@pytest.mark.parametrize("kind", ["hang", "disconnect", "status"])
def test_a_listing_that_fails_once_is_tried_again(federation: Federation, names: Names, kind: str) -> None:
    federation.origin.fault(kind, 500 if kind == "status" else 0, methods=("PROPFIND",), times=1)
    assert len(names("r0/*.parquet")) == 2


@SHORT
def test_a_listing_that_hangs_for_ever_ends_with_its_time_limit(federation: Federation, names: Names) -> None:
    federation.origin.fault("hang", methods=("PROPFIND",))
    with pytest.raises(UnavailableError, match=r"the listing can't be reached within 2 s: https"):
        names("r0/*.parquet")
    assert num_listings(federation) == 2


def test_a_part_of_a_tree_that_can_not_be_listed_is_an_error_and_no_shorter_list(
    federation: Federation, names: Names
) -> None:
    federation.origin.fault("status", 404, match="deep", methods=("PROPFIND",))
    with pytest.raises(UnavailableError, match="it was there a moment ago"):
        names("**/*.parquet")


@pytest.mark.parametrize(
    ("kind", "value", "error", "text"),
    [
        ("status", 404, BadInputError, "is no Pelican federation: .* answered 404; is the host right"),
        ("status", 500, UnavailableError, "discovery answered 500"),
        ("html", 0, BadInputError, "names no director"),
        ("no-director", 0, BadInputError, "names no director"),
    ],
)
def test_a_wrong_discovery_is_told(
    federation: Federation, names: Names, kind: str, value: float, error: type, text: str
) -> None:
    federation.director.fault(kind, value, match="pelican-configuration")
    with pytest.raises(error, match=text):
        names("r0/*.parquet")


def test_a_listing_that_needs_a_token_says_so(federation: Federation, thread: PelicanThread) -> None:
    federation.put("/private/x/a.parquet", b"1")
    with pytest.raises(DeniedError, match=r"refuses the listing \(40[13]\); no token was sent"):
        thread.expand(federation.url("/private/x/*.parquet"), SUFFIXES)


def test_hostile_names_in_a_listing_are_left_out_and_told(
    federation: Federation, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    federation.origin.fault("names", methods=("PROPFIND",))
    found = [name for name, _ in names("r0/*")]
    assert {"r0/a.parquet", "r0/with space.parquet", "r0/a,b.parquet", "r0/ü-µ-∇.parquet"} <= set(found)
    assert not any(".." in name or "passwd" in name or "\0" in name for name in found)
    assert "impossible names" in caplog.text


# ------------------------------------------------------------------ the pure parts


def multistatus(*hrefs: str) -> bytes:
    responses = "".join(f"<D:response><D:href>{href}</D:href></D:response>" for href in hrefs)
    return f'<D:multistatus xmlns:D="DAV:">{responses}</D:multistatus>'.encode()


@pytest.mark.parametrize(
    ("hrefs", "raw_names", "expected"),
    [
        (["/d/a%20b", "/d/c"], False, ["a b", "c"]),
        (["/d/a%41", "/d/c d"], False, ["a%41", "c d"]),
        (["/d/a%41"], True, ["a%41"]),
        (["https://host/d/a", "/prefix/d/b"], False, ["a", "b"]),
    ],
)
def test_escaped_and_raw_names_are_told_apart(hrefs: list[str], raw_names: bool, expected: list[str]) -> None:
    listing = listing_of(multistatus("/d/", *hrefs), "/d", raw_names=raw_names)
    assert [entry.name for entry in listing.entries] == expected
    assert listing.itself is not None
    assert listing.itself.is_dir


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html></html>", b"<a", b"\xff\xfe", b'<!DOCTYPE x [<!ENTITY a "b">]>' + multistatus("/d/a")),
        *(
            (f'<?xml version="1.0" encoding="{code}"?><!DOCTYPE x>' + multistatus("/d/a").decode()).encode(code)
            for code in ("utf-8", "utf-16", "utf-16-le", "utf-16-be")
        ),
    ],
)
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedListing):
        listing_of(body, "/d", raw_names=False)
