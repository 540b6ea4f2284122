"""What the documentation says is there is there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from services.config.root import known_keys

ROOT = Path(__file__).resolve().parent.parent


def test_the_configuration_page_is_what_the_configuration_tree_says() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "write_configuration.py"))["page"]()
    assert (ROOT / "docs" / "reference" / "configuration.md").read_text() == page, "run `make docs`"


@pytest.mark.process  # an imported library asks `uname -p`
def test_the_page_on_commands_is_what_their_help_says() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "write_cli.py"))["page"]()
    assert (ROOT / "docs" / "reference" / "cli.md").read_text() == page, "run `make docs` (python docs/write_cli.py)"


def test_the_page_on_migrating_has_the_table_of_the_old_flags() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "write_migrate.py"))["page"]()
    assert (ROOT / "docs" / "how-to" / "migrate.md").read_text() == page, "run `make docs`"


def test_the_page_of_the_source_tree_is_that_of_the_packages() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "write_tree.py"))["page"]()
    assert (ROOT / "docs" / "development" / "source-tree.md").read_text() == page, "run `make docs`"


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def pages() -> list[Path]:
    """Pages of docs/, of every kind."""
    return sorted((ROOT / "docs").rglob("*.md"))


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *pages()]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_of_one_kind_and_in_the_menu_of_the_site() -> None:
    kinds = {"tutorial", "how-to", "reference", "explanation", "development"}
    names = [page.relative_to(ROOT / "docs").as_posix() for page in pages()]
    menu = re.findall(r"^ *- ([a-z0-9/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert [name for name in names if name != "index.md" and name.split("/")[0] not in kinds] == []
    assert sorted(menu) == names, "mkdocs.yml has the menu"


def test_every_page_that_a_file_names_exists() -> None:
    folders = ("common", "icestream", "services", "workloads", "benchmarks", "tests", "docs", "configs", ".ci")
    files = [path for path in ROOT.glob("*") if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*")]
    history = {"CHANGELOG.md", "log.md"}
    texts = [path for path in files if path.suffix in {".md", ".py", ".toml", ".yml", ""} and path.name not in history]
    gone = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in texts
        if path.is_file()
        for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md\b", path.read_text())
        if not (ROOT / page).exists()
    }
    assert gone == set(), "pages are in docs/tutorial, how-to, reference, explanation and development"


def test_links_of_the_site_to_files_that_are_not_pages_name_them_or_lead_to_the_repository() -> None:
    replaced = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["with_outer_links"]
    text = "[trust](../../SECURITY.md), [plan](../explanation/mixing.md#shuffle), ![plot](../../other/a.png)"
    assert replaced(text, "docs/how-to", None) == text.replace("[trust](../../SECURITY.md)", "trust (`SECURITY.md`)")
    linked = "[trust](https://host.example/a/b/blob/main/SECURITY.md)"
    assert replaced(text, "docs/how-to", "https://host.example/a/b/") == text.replace(
        "[trust](../../SECURITY.md)", linked
    )


def test_every_dependency_is_justified_and_pinned() -> None:
    import tomllib

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
    import tomllib

    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [name for name in build if name not in pins] == []


def test_the_images_install_the_pinned_packages_by_hash_but_for_torch() -> None:
    import tomllib

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
    page = (ROOT / "docs/how-to/migrate.md").read_text()
    branches = "|".join(sorted({key.partition(".")[0] for key in known_keys() if "." in key}))
    named = set(re.findall(rf"`((?:{branches})\.[a-z_.]+)", page))

    assert len(named) > 40
    assert named <= {*known_keys(), "trainer.wgan.adaptive"}


def test_make_help_lists_every_target_that_a_person_types() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    assert [name for name in targets.split() if not re.search(rf"^{name}:.*  ## \w", makefile, re.M)] == []
