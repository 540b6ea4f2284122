"""``federation``: the light one, healed before and after each test; with ``@BOTH_KINDS`` real XRootD, too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .federation import Federation, Kind


BOTH_KINDS = pytest.mark.parametrize("started_federation", ["light", "xrootd"], indirect=True)
"""What depends on how a real data server behaves is tested with one as well."""


@pytest.fixture(scope="session")
def started_federation(request: pytest.FixtureRequest) -> Iterator[Federation]:
    from .federation import Federation
    from .xrootd import available

    kind: Kind = getattr(request, "param", "light")
    if kind == "xrootd" and not available():
        why = "XRootD is not installed: apt-get install xrootd-server xrootd-scitokens-plugins"
        if os.environ.get("REQUIRE_XROOTD") == "1":
            pytest.fail(why)
        pytest.skip(why)
    # Not below pytest's folder: each pytest that starts makes that 0700, and XRootD's user must get through.
    with (
        tempfile.TemporaryDirectory(prefix="federation-") as work,
        Federation(Path(work), caches=2, kind=kind) as federation,
    ):
        yield federation


@pytest.fixture
def federation(started_federation: Federation) -> Iterator[Federation]:
    started_federation.heal()
    started_federation.log.clear()
    yield started_federation
    started_federation.heal()
