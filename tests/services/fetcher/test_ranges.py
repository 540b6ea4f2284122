from __future__ import annotations

import pytest

from common.errors import BadInputError
from services.config.fetcher import FetcherConfig, range_names
from services.fetcher.inventory.ranges import Backoff, InputRange, make_ranges


def test_ranges_are_put_in_for_the_placeholder() -> None:
    assert make_ranges(["pelican://h/a/{range}/*.parquet", "/b/{range}"], "0:2000:1000") == [
        InputRange("0000000-0000999", ("pelican://h/a/0000000-0000999/*.parquet", "/b/0000000-0000999")),
        InputRange("0001000-0001999", ("pelican://h/a/0001000-0001999/*.parquet", "/b/0001000-0001999")),
        InputRange("0002000-0002999", ("pelican://h/a/0002000-0002999/*.parquet", "/b/0002000-0002999")),
    ]


def test_the_users_hundred_ranges_are_a_hundred() -> None:
    names = range_names("0:99000:1000")
    assert (len(names), names[0], names[-1]) == (100, "0000000-0000999", "0099000-0099999")


def test_without_ranges_the_inputs_are_one() -> None:
    assert make_ranges(["a", "b"], "") == [InputRange("", ("a", "b"))]


@pytest.mark.parametrize(
    "text", ["1000", "0:5", "a:b:c", "5:0:1", "0:5:0", "0:9999999:1", "-1:5:1", "0:5:1:2", "0:5:٣"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"FIRST:LAST:STEP|at most"):
        FetcherConfig(ranges=text)


def test_a_template_without_ranges_and_ranges_without_a_template_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"a/\{range\}: .* needs --ranges"):
        make_ranges(["a/{range}"], "")
    with pytest.raises(BadInputError, match=r"^b: .*template"):
        make_ranges(["a/{range}", "b"], "0:1:1")


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(5.0, 300.0)
    assert [backoff.failed(0.0) for _ in range(8)] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.failed(1.0) == 225, "jitter takes up to a quarter"
    assert backoff.tries == 9
    backoff.worked()
    assert backoff.failed(0.0) == 5
