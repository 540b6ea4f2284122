"""Hooks of `make docs-site`: pages that are written while the site is built, and links that leave docs/.

Some texts are not in git, since the code already says them: the commands, the settings, the source tree, and the tables
of old scripts and flags. Without the site: `icestream COMMAND --help`, `icestream config --keys`.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
import textwrap
from collections.abc import Iterator
from copy import copy
from html import unescape
from pathlib import Path
from typing import Any, get_args

import click
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from icestream.cli import VERBS, cli, listed, own_command
from icestream.commands.migrate import flags_of
from services.config.root import Config
from workloads import registry
from workloads.base.interface import Section

logger = logging.getLogger("mkdocs.hooks")

ROOT = Path(__file__).resolve().parent.parent
OLD = re.compile(r"<!-- table that the site's build writes here: (\S+) -->")
"""Place of a table of old scripts, or of the flags of one."""
FIRST_RUN = "<!-- Install and First run of README.md: the site's build writes them here -->"
WIDTH_OF_CODE = 80
"""Columns of code that a page of the site shows in a window of 1,300 pixels."""
_OUTER_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Add the generated pages to the files of the site."""
    for name, page in GENERATED.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the text of a page with what stands elsewhere in its place, and with its links out of docs/ replaced."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    markdown = OLD.sub(lambda place: "\n".join(rows_of_flags(place[1])), markdown).replace(FIRST_RUN, first_run())
    return with_outer_links(markdown, folder, config["repo_url"])


def rows_of_flags(script: str) -> list[str]:
    """Return the table of the flags of a script, or of the `scripts` themselves, as Markdown."""
    lines = ["| old | icestream | what is different, or why there is none |", "| --- | --- | --- |"]
    for flag in flags_of(script).values():
        name = f"`{flag.name}`" if flag.name != "--infiles" else "`-i`, `--infiles`"
        if flag.alias_of:
            lines.append(f"| {name} | as `{flag.alias_of}` | |")
        else:
            note = f" {flag.note} " if flag.note else " "
            counterparts = [*([flag.option] if flag.option else []), *(f"`{key}`" for key in flag.keys)]
            lines.append(f"| {name} | {', '.join(counterparts) or 'not needed'} |{note}|")
    return lines


def first_run() -> str:
    """Return the README's sections that a newcomer needs, with their links as of docs/index.md."""
    sections = re.split(r"(?m)^(?=## )", (ROOT / "README.md").read_text())
    wanted = [text for text in sections if text.startswith(("## Install\n", "## First run\n"))]
    return "".join(wanted).replace("](docs/", "](")


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Warn of code that a page would show cut; a warning fails a strict build. A word that is too long stays."""
    blocks = re.findall(r"<pre>.*?</pre>", html, re.DOTALL) if page.file.src_uri not in GENERATED else []
    for block in blocks:  # those of the commands' help wrap
        for line in unescape(re.sub(r"<[^>]+>", "", block)).splitlines():
            if len(line) > WIDTH_OF_CODE > max(map(len, line.split())) + 8:
                logger.warning("%s: code of more than %d columns: %s", page.file.src_uri, WIDTH_OF_CODE, line)
    return html


def with_outer_links(markdown: str, folder: str, repo_url: str | None) -> str:
    """Replace the links to files that are not pages (SECURITY.md, benchmarks/results/…): the site has no copy of them.

    They lead to the repository if mkdocs.yml has its `repo_url`, else the file is named by its path; those to the
    README lead to the first page, which has its sections.
    """

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        if path == "README.md":
            return f"[{link[1]}]({posixpath.relpath('docs/index.md', folder)}{link[3] or ''})"
        return f"[{link[1]}]({repo_url.rstrip('/')}/blob/main/{path})" if repo_url else f"{link[1]} (`{path}`)"

    return _OUTER_LINK.sub(replaced, markdown)


# ------------------------------------------------------------ commands

_ABOUT_COMMANDS = """# Commands

Help of each command, as `icestream run --help` prints it, in the sections of `icestream --help`. Exit codes:
[exit-codes.md](exit-codes.md).

For completion with Tab, type once: `_ICESTREAM_COMPLETE=bash_source icestream >> ~/.bashrc` (also `zsh_source`,
`fish_source`). `icestream --version` names the commit, Python, torch and CUDA.
"""


def commands() -> str:
    """Return the page of all commands."""
    parts = [_ABOUT_COMMANDS]
    for section in get_args(Section):
        parts.append(f"\n## {section}\n")
        for name in [name for name, _, where in listed() if where == section]:
            parts += _help_of_verb(name)
    return "".join(parts)


def _help_of_verb(name: str) -> Iterator[str]:
    """Yield the help of a command; of a workloads' command, one for each of them that has it."""
    if name in VERBS:
        yield from _help(own_command(name), f"icestream {name}", f"icestream {name}")
        return
    for workload in registry.names():
        if verb := registry.verbs(workload).get(name):
            yield from _help(registry.loaded(verb.command), f"icestream {name}", f"icestream {name} ({workload})")


def _help(command: click.Command, name: str, title: str) -> Iterator[str]:
    command = copy(command)
    command._help_option = None  # click keeps that of the first call, which may have been without our context
    context = click.Context(command, info_name=name, terminal_width=WIDTH_OF_CODE, **cli.context_settings)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f'\n### {title}\n\n<div class="help" markdown>\n\n```text\n{text}\n```\n\n</div>\n'
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            subcommand = command.get_command(context, below)
            assert subcommand is not None
            yield from _help(subcommand, f"{name} {below}", f"{title} {below}")


# ------------------------------------------------------------ settings

_ABOUT_SETTINGS = """# Configuration

All settings are one tree. Later values win: defaults, the run directory's `config.json`, the TOML file (`-c`), the
environment (`ICESTREAM_STREAM__BATCH_EVENTS=512`), `--set stream.batch_events=512`, flags. `--set` also takes the last
part of a key if only one key ends with it. An unknown key is an error that names the nearest known one. `icestream
config` prints the resolved tree; each checkpoint holds it. `ICESTREAM_TRUST_GROUP` is no setting: see
[run-directory.md](run-directory.md#who-may-write).

Keys of `stream`, `seed` and the inputs belong to the plan: a run that resumes with others is refused, unless
`--new-plan` says to keep the weights and begin the new plan. (`stream.slots` may change at any time.)
"""


def settings() -> str:
    """Return the page of all settings."""
    return _ABOUT_SETTINGS + "".join(_section(Config, ""))


def _section(model: type[BaseModel], prefix: str) -> list[str]:
    rows, below = [], []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            below += _section(kind, f"{prefix}{name}.")
        else:
            meaning = " ".join((field.description or "").split()).replace("|", "\\|")
            rows.append(f"| `{name}` | `{field.default!r}` | {meaning} |\n")
    title = f"`[{prefix[:-1]}]`" if prefix else "Top level"
    about = " ".join((model.__doc__ or "").split())
    return [f"\n## {title}\n\n{about}\n\n| key | default | meaning |\n| --- | --- | --- |\n", *rows, *below]


# ------------------------------------------------------------ source tree

_ROOMS = ("icestream", "services", "workloads", "common")
"""From the front door down: each imports from those below it, and from no other."""
_BESIDE = {
    "tests": "mirror of the tree; pipeline/: whole runs, federation/: a Pelican federation for tests",
    "benchmarks": "measurements with their question; results/: dated tables",
    "docs": "these pages",
    "configs": "configurations to start from",
    "examples": "models of one's own, jobs of batch systems",
}
_ABOUT_TREE = """# Source tree

Imports go down only. Each file begins with a line that names its content; [extending.md](extending.md) says where a new
one goes, [life-of-an-event.md](life-of-an-event.md) what calls what.

"""
_WIDTH_OF_NAME = 30


def source_tree() -> str:
    """Return the page of all packages, each with the first line of its docstring."""
    rows = [
        *(row for room in _ROOMS for row in _packages(ROOT / room, 0)),
        *(_row(0, *item) for item in _BESIDE.items()),
    ]
    return _ABOUT_TREE + "".join(f"    {row}\n" for row in rows)


def _packages(folder: Path, depth: int) -> Iterator[str]:
    about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    yield _row(depth, folder.name, about.splitlines()[0] if about else "")
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            yield from _packages(path, depth + 1)


def _row(depth: int, name: str, about: str) -> str:
    first, *others = textwrap.wrap(about, WIDTH_OF_CODE - _WIDTH_OF_NAME) or [""]
    rows = [f"{'  ' * depth}{name}/".ljust(_WIDTH_OF_NAME) + first, *(" " * _WIDTH_OF_NAME + row for row in others)]
    return "\n    ".join(rows)


GENERATED = {
    "reference/cli.md": commands,
    "reference/configuration.md": settings,
    "development/source-tree.md": source_tree,
}
"""Pages that the build writes, by their place below docs/."""
