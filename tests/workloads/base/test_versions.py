"""Versions of programs."""

from __future__ import annotations

import platform
from importlib.metadata import version

from workloads.base.versions import versions


def test_a_package_that_is_not_installed_is_unknown_and_an_optional_one_is_left_out() -> None:
    found = versions(("numpy", "no-such-package"), optional=("torch", "nor-this-one"))
    assert found == {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "no-such-package": "unknown",
        "torch": version("torch"),
    }
