"""Names of the top-level packages: another program's `common` is named, never imported by mistake."""

from __future__ import annotations

import sys
from importlib.machinery import BuiltinImporter
from pathlib import Path

import pytest

from icestream import own_packages
from icestream.own_packages import NAMES, check_own_packages


def test_the_packages_of_this_installation_are_accepted() -> None:
    check_own_packages()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_package", [True, False])
def test_a_package_that_hides_one_of_ours_is_named_with_the_remedy(
    name: str, is_package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / name / "__init__.py" if is_package else tmp_path / f"{name}.py"
    hidden.parent.mkdir(exist_ok=True)
    hidden.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=f"'{name}' is hidden by {hidden}, .*: rename that, or take its directory"):
        check_own_packages()


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_packages, "NAMES", (name,))
    monkeypatch.setattr(sys, "meta_path", [BuiltinImporter])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=rf"'{name}' is missing in .*: install icestream again"):
        check_own_packages()
