"""What the documentation says is there is there."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from icestream.cli import listed
from services.config.root import known_keys
from workloads.muons.metrics.evaluate import DEFINITIONS as METRICS

ROOT = Path(__file__).resolve().parent.parent

LIFE = ROOT / "docs" / "development" / "life-of-an-event.md"
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", LIFE.read_text())))
HOOKS = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))  # pages that the site's build writes


def test_the_page_of_settings_names_every_one() -> None:
    page = HOOKS["settings"]()
    assert [key for key in known_keys() if f"| `{key.rpartition('.')[2]}` |" not in page] == []


@pytest.mark.process  # an imported library asks `uname -p`
def test_the_page_of_commands_has_the_help_of_every_verb() -> None:
    page = HOOKS["commands"]()
    assert [name for name, _, _ in listed() if f"### icestream {name}" not in page] == []


def test_the_page_of_metrics_names_every_one() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    # Further thresholds are named by their number, those in bins by their feature.
    short = re.compile(r"conditional_(?:zenith_|depth_)?(.*)_w1|count_at_least(_\d+_)ratio")
    missing = [name for name in METRICS if f"`{name}`" not in page]
    assert [name for name in missing if "`" + short.sub(r"\1\2", name) + "`" not in page] == []


def test_the_source_tree_names_every_package() -> None:
    page = HOOKS["source_tree"]()
    packages = {path.parent.name for room in ("icestream", "services") for path in (ROOT / room).rglob("__init__.py")}
    assert [name for name in sorted(packages) if f"{name}/ " not in page] == []


def test_the_pages_on_migrating_get_the_tables_of_old_scripts_and_flags() -> None:
    found = {name: HOOKS["OLD"].findall(page.read_text()) for page in pages() if (name := page.name)}
    assert (found["migrate.md"], found["from-iceaggr.md"]) == (["scripts", "train.py"], ["iceaggr"])
    assert len(HOOKS["rows_of_flags"]("train.py")) > 77


def pages() -> list[Path]:
    """Pages of docs/, of every kind."""
    return sorted((ROOT / "docs").rglob("*.md"))


def test_links_between_pages_lead_somewhere() -> None:
    generated = {(ROOT / "docs" / name).resolve() for name in HOOKS["GENERATED"]}
    for page in [*ROOT.glob("*.md"), *pages()]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and (page.parent / target).resolve() not in generated:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_and_folders_that_a_page_names_exist() -> None:
    rooms = "common|services|workloads|icestream|tests|benchmarks|examples"
    for page in [*ROOT.glob("*.md"), *pages()]:
        for name in re.findall(rf"`((?:{rooms})/[a-z_0-9/.-]+)`", page.read_text()):
            is_path = name.endswith(("/", ".py", ".cpp", ".h", ".csv", ".json", ".toml", ".md"))
            is_example = name.startswith("workloads/toys/") or page.name == "security.md"  # its tests have a test below
            assert not is_path or is_example or (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_page_is_of_one_kind_and_in_the_menu_of_the_site() -> None:
    kinds = {"tutorial", "how-to", "reference", "explanation", "development"}
    names = [page.relative_to(ROOT / "docs").as_posix() for page in pages()]
    menu = re.findall(r"^ *- (?:Start: )?([a-z0-9/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert [name for name in names if name != "index.md" and name.split("/")[0] not in kinds] == []
    assert sorted(menu) == sorted([*names, *HOOKS["GENERATED"]]), "mkdocs.yml has the menu"


def test_every_page_that_a_file_names_exists() -> None:
    folders = ("common", "icestream", "services", "workloads", "benchmarks", "tests", "docs", "configs", ".ci")
    files = [path for path in ROOT.glob("*") if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*")]
    kinds = {".md", ".py", ".toml", ".yml", ""}
    texts = [
        path for path in files if path.suffix in kinds and "results" not in path.parts and path.name != "decisions.md"
    ]
    gone = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in texts
        if path.is_file()
        for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md\b", path.read_text(errors="replace"))
        if not (ROOT / page).exists()
    }
    assert gone == set(), "pages are in docs/tutorial, how-to, reference, explanation and development"


def test_the_tests_that_the_page_on_security_names_exist() -> None:
    page = (ROOT / "docs/explanation/security.md").read_text()
    named = set(re.findall(r"`((?:[\w]+/)*test_\w+\.py)", page))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).exists()] == []


def test_every_dependency_is_justified_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    names = [re.split(r"[><=\[]", text)[0] for text in project["dependencies"] + extras]
    justified = (ROOT / "docs" / "development" / "dependencies.md").read_text()
    pinned = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    names.remove("s3fs")  # its botocore and ours have no common versions of python-dateutil and multidict
    for name in names:
        assert name in justified, f"docs/development/dependencies.md says nothing of {name}"
        assert f"{name.lower()}==" in pinned, f"constraints.txt doesn't pin {name}"


def test_every_pin_is_one_version_and_the_build_uses_the_pinned_setuptools() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [name for name in build if name not in pins] == []


def test_the_images_install_the_pinned_packages_by_hash_but_for_torch() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = set((ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines())
    found = {}
    for name in ("build", "data", "training"):
        requirements = (ROOT / f"configs/images/{name}.txt").read_text().replace("\\\n", "").splitlines()
        assert all("--hash=sha256:" in line for line in requirements)
        found[name] = {line.split()[0] for line in requirements}
        assert found[name] <= pins, "after a change of constraints.txt: make locks"
    assert found["data"] < found["training"]
    names = {re.split(r"[><=\[]", text)[0].lower() for text in dependencies} - {"torch"}
    assert names <= {pin.partition("==")[0] for pin in found["training"]}


def test_every_key_that_the_page_on_migrating_names_exists() -> None:
    page = "\n".join(
        [
            (ROOT / "docs/how-to/migrate.md").read_text(),
            *HOOKS["rows_of_flags"]("train.py"),
            *HOOKS["rows_of_flags"]("iceaggr"),
        ]
    )
    branches = "|".join(sorted({key.partition(".")[0] for key in known_keys() if "." in key}))
    named = set(re.findall(rf"`((?:{branches})\.[a-z_.]+)", page))

    assert len(named) > 30
    assert named <= set(known_keys())


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_the_life_of_an_event_names_is_defined_in_that_file(path: str, name: str) -> None:
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, defined)}
    assert name in names


def test_the_life_of_an_event_is_short_and_names_every_stage() -> None:
    assert len(LIFE.read_text().splitlines()) <= 60
    rooms = {path.split("/")[1] for path, _ in NAMED if path.startswith("services/")}
    assert rooms == {"fetcher", "decoder", "trainer"}
