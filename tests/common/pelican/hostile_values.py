"""Strategies for values that a hostile server may send."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from common.pelican.answers import Listing, ListingParser

UNHURRIED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FUZZ = settings(max_examples=50, deadline=None, suppress_health_check=UNHURRIED)
FEW = settings(max_examples=20, deadline=None, suppress_health_check=UNHURRIED)
ANY = st.text(st.characters(), max_size=40)  # lone surrogates, too: headers are decoded with them
NUMBERS = st.sampled_from(
    ["0", "7", "²", "٣", "-1", "+1", "1_0", "9" * 19, "9" * 5000, str(1 << 63), " 1", "1e9", "0x1", ""]
)
URLS = st.one_of(
    st.sampled_from(
        [
            *("https://h", "https://h:8443/ns", "https://[::1", "https://[::1]:1/x", "https://[z]/x"),
            *("https://h:99999999", "https://h:²", "https://u:p@h", "https://a..b", "https://" + "x" * 70),
            *("http://localhost:0", "https://h/\x00", "https://h/\udcff", "https://\ufe0f", "//h", "javascript:x"),
        ]
    ),
    st.builds("https://{}".format, ANY),
    ANY,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY, URLS, NUMBERS, st.just(10**400)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=6,
)
DEEP = "[" * 50_000
PATH = "/ns/d/a.parquet"


def objects(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects that have some of these names, with anything in them."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, JSON))


def listing_of(body: bytes, path: str, *, raw_names: bool) -> Listing:
    """The listing of ``path`` from a complete body."""
    parser = ListingParser()
    parser.feed(body)
    return parser.listing(path, raw_names=raw_names)
