"""Scopes: what a token covers, and what inputs and outputs need."""

from __future__ import annotations

import pytest

from common.errors import BadInputError
from common.pelican.tokens.scopes import (
    Need,
    Scope,
    directory,
    federation_of,
    is_any_audience,
    missing,
    needs,
    parse_scopes,
    reduced,
    trimmed,
)

TESTING = "pelican://osg-htc.org/icecube/wipac/data/sim/IceCube/2025/testing"
PREFIX = "/icecube/wipac"


def scopes(*texts: str) -> tuple[Scope, ...]:
    return tuple(Scope(*text.split(":")) for text in texts)


@pytest.mark.parametrize(
    ("granted", "needed", "covered"),
    [
        ("storage.read:/a", "storage.read:/a", True),
        ("storage.read:/a", "storage.read:/a/b", True),
        ("storage.read:/a/", "storage.read:/a/b", True),
        ("storage.read://a//", "storage.read:/a/b", True),
        ("storage.read:/a", "storage.read:/ab", False),
        ("storage.read:/a", "storage.read:/", False),
        ("storage.read:/a/b", "storage.read:/a", False),
        ("storage.read:/", "storage.read:/a/b", True),
        ("storage.read", "storage.read:/a/b", True),
        ("storage.stage:/a", "storage.read:/a", True),
        ("storage.modify:/a", "storage.create:/a", True),
        ("storage.create:/a", "storage.modify:/a", False),
        ("storage.modify:/a", "storage.read:/a", False),
        ("storage.read:/a", "storage.create:/a", False),
        ("storage.read:/x storage.read:/a", "storage.read:/a/b", True),
        ("read:/a", "storage.read:/a/b", True),
        ("write:/a", "storage.create:/a", True),
        ("write:/a", "storage.modify:/a", True),
        ("storage.read:/a/../b", "storage.read:/b", False),
        ("storage.read:/a/../b", "storage.read:/a", False),
        ("openid offline_access", "storage.read:/a", False),
        ("", "storage.read:/", False),
    ],
)
def test_a_scope_covers_its_directory_and_all_below_it_for_what_it_permits(
    granted: str, needed: str, covered: bool
) -> None:
    assert (not missing(parse_scopes(granted), scopes(needed))) == covered


def test_what_is_missing_is_told_and_nothing_else() -> None:
    granted = parse_scopes("storage.read:/a wlcg storage.read:/b")
    assert missing(granted, scopes("storage.read:/a/x", "storage.read:/c", "storage.create:/a")) == scopes(
        "storage.read:/c", "storage.create:/a"
    )


def test_a_token_without_audience_or_for_any_is_for_every_server() -> None:
    assert is_any_audience(())
    assert is_any_audience(("https://wlcg.cern.ch/jwt/v1/any",))
    assert is_any_audience(("https://one.org", "ANY"))
    assert not is_any_audience(("https://one.org",))


@pytest.mark.parametrize(
    "inputs",
    [
        [f"{TESTING}/0000000-0000999/*.parquet"],
        [f"{TESTING}/{{range}}/*.parquet"],
        [f"{TESTING}/*/*.parquet"],
        [f"{TESTING}/**/*.parquet"],
        [f"{TESTING}/**"],
        [f"{TESTING}/000000?-000099[89]/x.parquet"],
        [f"{TESTING}/{{0000000-0000999,0001000-0001999}}/x.parquet"],
        [f"{TESTING}/0000000-0000999/muons 1.parquet", f"{TESTING}/0001000-0001999/a.h5"],
        [f"{TESTING}/0000000-0000999/", f"{TESTING}/0001000-0001999"],
        [f"{TESTING}", f"{TESTING}/"],
        [f"{TESTING}/muons.parquet"],
        [f"{TESTING}/./0000000-0000999//a.parquet"],
        ["osdf:///icecube/wipac/data/sim/IceCube/2025/testing/0000000-0000999/*.parquet"],
        ["osdf://icecube/wipac/data/sim/IceCube/2025/testing/*"],
        [f"{TESTING}/{start:07d}-{start + 999:07d}/*.parquet" for start in range(0, 100_000, 1000)],
    ],
)
def test_one_scope_serves_all_ranges(inputs: list[str]) -> None:
    expected = Need("osg-htc.org", scopes("storage.read:/data/sim/IceCube/2025/testing"))
    assert needs(inputs, storage_prefix=PREFIX) == (expected,)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (f"{TESTING}/2025-01/a.parquet", "/data/sim/IceCube/2025/testing/2025-01"),  # a month is no range
        (f"{TESTING}/level2/", "/data/sim/IceCube/2025/testing/level2"),
        (f"{TESTING}/notes.txt", "/data/sim/IceCube/2025/testing/notes.txt"),
        (f"{TESTING}/dir.parquet/", "/data/sim/IceCube/2025/testing/dir.parquet"),
        (f"{TESTING}/größe/a.parquet", "/data/sim/IceCube/2025/testing"),  # no scope can hold it
        ("pelican://osg-htc.org/icecube/wipacx/a.parquet", "/icecube/wipacx"),
        ("pelican://osg-htc.org/other/a.parquet", "/other"),
        ("pelican://osg-htc.org/*.parquet", "/"),
        ("pelican://osg-htc.org", "/"),
        ("pelican://osg-htc.org/icecube/wipac/*", "/"),
        ("pelican://osg-htc.org/icecube/*/x", "/icecube"),
    ],
)
def test_a_scope_is_only_as_wide_as_needed(url: str, path: str) -> None:
    assert directory(url, PREFIX) == ("osg-htc.org", path)


def test_several_inputs_have_a_set_of_scopes_by_federation() -> None:
    found = needs(
        [
            "pelican://a.org/x/1/*.parquet",
            "pelican://A.org:8443/x/*",
            "pelican://a.org/x/2/*.parquet",
            "pelican://a.org/x/2/deep/*.parquet",
            "/local/*.parquet",
            "https://elsewhere.org/x/*.parquet",
            "s3://bucket/x",
        ]
    )
    assert found == (
        Need("a.org", scopes("storage.read:/x/1", "storage.read:/x/2")),
        Need("a.org:8443", scopes("storage.read:/x")),
    )
    assert federation_of("pelican://A.org/x") == "a.org"
    assert federation_of("/pelican/x") is None


def test_only_outputs_in_a_federation_need_to_write() -> None:
    assert needs([], ["/local/checkpoints", "s3://bucket/x"]) == ()
    found = needs([f"{TESTING}/*"], [f"{TESTING}/out", "/local"], storage_prefix=PREFIX)
    assert found[0].scopes == scopes(
        "storage.create:/data/sim/IceCube/2025/testing/out",
        "storage.modify:/data/sim/IceCube/2025/testing/out",
        "storage.read:/data/sim/IceCube/2025/testing",
    )


def test_a_path_with_dots_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"'\.\.' is not allowed"):
        needs([f"{TESTING}/../other/*.parquet"])


def test_scopes_inside_others_are_left_out() -> None:
    assert reduced(scopes("storage.read:/a/b", "storage.read:/a", "storage.read:/ab", "storage.create:/a/b")) == scopes(
        "storage.create:/a/b", "storage.read:/a", "storage.read:/ab"
    )
    assert reduced(scopes("storage.read:/a", "storage.read:/")) == scopes("storage.read:/")


def test_scopes_are_cut_to_what_an_issuer_grants() -> None:
    deep = scopes("storage.read:/a/b/c", "storage.read:/a/b/d")
    assert trimmed(deep, None) == deep
    assert trimmed(deep, 5) == deep
    assert trimmed(deep, 2) == scopes("storage.read:/a/b")
    assert trimmed(deep, 0) == scopes("storage.read:/")


def test_a_list_of_very_many_files_has_few_scopes() -> None:
    inputs = [f"{TESTING}/{i // 1000 * 1000:07d}-{i // 1000 * 1000 + 999:07d}/{i}.parquet" for i in range(20_000)]
    assert len(needs(inputs, storage_prefix=PREFIX)[0].scopes) == 1
