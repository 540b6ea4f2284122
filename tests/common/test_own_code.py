"""Code of the user's own: which names are names, where modules are looked for, what an error in them says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import BadInputError
from common.own_code import import_own, is_own, require_module
from workloads.registry import section_name


@pytest.fixture(autouse=True)
def nothing_stays_imported() -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_a_module_and_a_name_in_it_are_code_of_ones_own() -> None:
    for name in ("a:B", "package.module:TRAINING", "_x1.y_2:_Z"):
        assert is_own(name)
        assert section_name(name) == "own"
    for name in ("wgan", "a", ":B", "a:", "a:B:C", "../a:B", "a.b:C.d", "a/b.py:C", "a:B\n", "1a:B"):
        assert not is_own(name)
        assert section_name(name) == name


def test_a_module_of_the_current_folder_is_found_without_running_it(folder: Path) -> None:
    (folder / "its_own.py").write_text("open('ran', 'w').close()\nTRAINING = 3\n")
    require_module("its_own:TRAINING")
    assert not (folder / "ran").exists()
    assert import_own("its_own:TRAINING") == 3
    assert (folder / "ran").exists()


def test_a_module_that_others_can_change_in_the_current_folder_is_not_run(folder: Path) -> None:
    (folder / "its_own.py").write_text("open('ran', 'w').close()\nTRAINING = 3\n")
    folder.chmod(0o777)
    for use in (require_module, import_own):
        with pytest.raises(BadInputError, match=r"its_own\.py: .* \(mode 0777.*can be changed by every user"):
            use("its_own:TRAINING")
    assert not (folder / "ran").exists()


def test_a_file_called_like_a_module_of_python_is_not_imported_in_its_place(folder: Path) -> None:
    (folder / "colorsys.py").write_text("raise SystemExit('imported')\n")
    (folder / "mine.py").write_text("import colorsys\nTRAINING = colorsys.rgb_to_hsv\n")
    assert import_own("mine:TRAINING")(0, 0, 0) == (0.0, 0.0, 0)


def test_a_module_in_pythonpath_comes_before_the_current_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("elsewhere")
    for place in (folder, other):
        (place / "in_both.py").write_text(f"TRAINING = {str(place)!r}\n")
    monkeypatch.syspath_prepend(str(other))
    assert import_own("in_both:TRAINING") == str(other)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package' .*faulty.py, line 1"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero .*faulty.py, line 2"),
        ("def f(:", "SyntaxError: .*faulty.py, line 1"),
        ("OTHER = 1", r"faulty.py has no 'TRAINING'"),
    ],
)
def test_an_error_in_its_code_is_one_line_with_the_place(folder: Path, code: str, why: str) -> None:
    (folder / "faulty.py").write_text(code if "OTHER" in code else f"{code}\nTRAINING = 1")
    with pytest.raises(BadInputError, match=why) as caught:
        import_own("faulty:TRAINING")
    assert "\n" not in str(caught.value)


def test_a_module_that_is_nowhere_is_said_with_where_it_was_looked_for(folder: Path) -> None:
    with pytest.raises(BadInputError, match=f"no module 'nowhere' in the current folder \\({folder}\\), in PYTHONPATH"):
        require_module("nowhere.at_all:TRAINING")


@pytest.mark.parametrize(
    "code",
    [
        "TRAINING = 1",
        "from json import *",
        "def __getattr__(name): return 3",
        "if True:\n    try:\n        with open('x') as TRAINING: pass\n    except OSError: TRAINING = 2",
        "def f():\n    global TRAINING\n    TRAINING = 1\nf()",
        "globals()['TRAIN' + 'ING'] = 1",
        "_, (*TRAINING, _) = 1, (2, 3)",
    ],
)
def test_every_way_to_bind_a_name_is_one(folder: Path, code: str) -> None:
    (folder / "binds.py").write_text(code)
    require_module("binds:TRAINING")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("open('ran', 'w').close()\nTRAINING = 1", "faulty.py has no 'TRANING'; did you mean 'TRAINING'?$"),
        ("traning = 1", "faulty.py has no 'TRANING'; did you mean 'traning'?$"),
        ("def f():\n    TRANING = 1\nTRANING", "faulty.py has no 'TRANING'$"),
        ("class C:\n    TRANING = 1", "faulty.py has no 'TRANING'$"),
        ("def f(:", "can't be imported: SyntaxError: .*faulty.py, line 1"),
        ("x = '\0'", "can't be imported: .*null bytes"),
    ],
)
def test_a_name_that_a_module_lacks_is_found_without_running_it(folder: Path, code: str, why: str) -> None:
    (folder / "faulty.py").write_text(code)
    with pytest.raises(BadInputError, match=why.replace("?$", r"\?$")):
        require_module("faulty:TRANING")
    assert not (folder / "ran").exists()


def test_a_module_that_a_package_lacks_is_found_without_running_it(folder: Path) -> None:
    (folder / "pack" / "inner").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("open('ran', 'w').close()")
    (folder / "pack" / "inner" / "mine.py").write_text("TRAINING = 1")
    require_module("pack.inner.mine:TRAINING")
    with pytest.raises(BadInputError, match=f"there is no module 'mein' in .*{folder}/pack/inner"):
        require_module("pack.inner.mein:TRAINING")
    with pytest.raises(BadInputError, match=r"mine.py is no package"):
        require_module("pack.inner.mine.deeper:TRAINING")
    assert not (folder / "ran").exists()
