from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.config.decoder import DecoderConfig, parse_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [("3", (3,)), ("2-5", (2, 3, 4, 5)), ("2-3,20", (2, 3, 20)), ("4,1-2,4", (4, 1, 2)), ("7-7", (7,))],
)
def test_a_list_of_cores_is_read_in_its_order_each_core_once(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["all", "5-2", "1,", ",1", "-3", "1-2-3", "0x1", "1.5"])
def test_what_is_no_list_of_cores_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="a list of cores such as 2-15,20"):
        DecoderConfig(affinity=text)


def test_a_single_core_may_be_a_number_and_spaces_do_not_matter() -> None:
    assert DecoderConfig(affinity=3).affinity == "3"  # type: ignore[arg-type]
    assert DecoderConfig(affinity="2 - 4, 8").affinity == "2-4,8"
    assert DecoderConfig(affinity="auto").affinity == "auto"
