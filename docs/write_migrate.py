"""Writes the table of docs/how-to/migrate.md from the list of the old flags: `make docs`. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from workloads.muons.migrate.flags import rows

PAGE = Path(__file__).parent / "how-to" / "migrate.md"
BEGIN, END = "<!-- flags: written by `make docs` -->\n", "<!-- end of flags -->\n"


def page() -> str:
    """The page with a new table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(rows()) + f"\n\n{END}" + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
