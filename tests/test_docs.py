"""What the documentation says is there is there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from services.config.root import known_keys

ROOT = Path(__file__).resolve().parent.parent


def test_the_configuration_page_is_what_the_configuration_tree_says() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "write_configuration.py"))["page"]()
    assert (ROOT / "docs" / "configuration.md").read_text() == page, "run `make docs`"


def test_the_readmes_file_tree_is_that_of_the_packages() -> None:
    section = runpy.run_path(str(ROOT / "docs" / "write_tree.py"))["section"]()
    assert section in (ROOT / "README.md").read_text(), "run `make docs`"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_dependency_is_justified_and_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [
        re.split(r"[><=\[]", text)[0] for text in project["dependencies"] + project["optional-dependencies"]["dev"]
    ]
    justified = (ROOT / "docs" / "dependencies.md").read_text()
    pinned = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    for name in names:
        assert name in justified, f"docs/dependencies.md says nothing of {name}"
        assert f"{name.lower()}==" in pinned, f"constraints.txt doesn't pin {name}"


def test_every_pin_is_one_version_and_the_build_uses_the_pinned_setuptools() -> None:
    import tomllib

    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [name for name in build if name not in pins] == []


def test_every_key_that_the_page_on_migrating_names_exists() -> None:
    page = (ROOT / "docs/migrating.md").read_text()
    branches = "|".join(sorted({key.partition(".")[0] for key in known_keys() if "." in key}))
    named = set(re.findall(rf"`((?:{branches})\.[a-z_.]+)", page))

    assert len(named) > 40
    assert named <= {*known_keys(), "trainer.wgan.adaptive"}
