"""``federation``: the light and the real one in turn, healed before and after each test.

Only one of them: ``@pytest.mark.parametrize("started_federation", ["light"], indirect=True)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .federation import Federation


@pytest.fixture(scope="session", params=["light", "xrootd"])
def started_federation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    from .federation import Federation
    from .xrootd import available

    if request.param == "xrootd" and not available():
        why = "XRootD is not installed: apt-get install xrootd-server xrootd-scitokens-plugins"
        if os.environ.get("ICESTREAM_REQUIRE_XROOTD") == "1":
            pytest.fail(why)
        pytest.skip(why)
    work = tmp_path_factory.mktemp(f"federation-{request.param}")
    if request.param == "xrootd" and os.getuid() == 0:
        for folder in (work.parent, work.parent.parent):  # pytest makes them 0700; XRootD's user must get through
            folder.chmod(0o711)
    with Federation(work, caches=2, kind=request.param) as federation:
        yield federation


@pytest.fixture
def federation(started_federation: Federation) -> Iterator[Federation]:
    started_federation.heal()
    started_federation.log.clear()
    yield started_federation
    started_federation.heal()
