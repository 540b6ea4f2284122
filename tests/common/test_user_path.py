"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import BadInputError
from common.options import absolute
from common.user_path import user_path


def test_the_users_home_is_found_and_any_other_path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert user_path("~/x") == user_path(Path("~/x")) == Path("/home/someone/x")
    assert user_path("a/~b") == Path("a/~b")
    assert absolute(("@~/list", "pelican://host/~x")) == ("@/home/someone/list", "pelican://host/~x")


@pytest.mark.parametrize("text", ["~nosuchuser/x", "~nosuchuser", "a\0b", "~/\0"])
def test_a_path_that_can_not_be_one_is_told_in_one_line(text: str) -> None:
    with pytest.raises(BadInputError, match=r"no home of that user|zero byte"):
        user_path(text)
    for option in (text, f"@{text}"):
        with pytest.raises(BadInputError):
            absolute((option,))
