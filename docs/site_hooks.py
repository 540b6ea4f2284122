"""Links of the site to files that are not pages (SECURITY.md, benchmarks/results/…).

In a clone they are relative links. The site has no copy of those files: they are linked in the repository if
mkdocs.yml has its `repo_url`, and named by their path otherwise.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Markdown of a page with its links out of docs/ replaced."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    return with_outer_links(markdown, folder, config["repo_url"])


def with_outer_links(markdown: str, folder: str, repo_url: str | None) -> str:
    """Markdown of a page in this folder of the repository, with its links out of docs/ replaced."""

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        return f"[{link[1]}]({repo_url.rstrip('/')}/blob/main/{path})" if repo_url else f"{link[1]} (`{path}`)"

    return _LINK.sub(replaced, markdown)
