"""Writes docs/reference/configuration.md from the configuration tree: `make docs`. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from services.config.root import Config

PAGE = Path(__file__).parent / "reference" / "configuration.md"

HEAD = """# Configuration

One tree. Later wins: defaults, the run directory's `config.json`, the TOML file (`-c`), the environment
(`ICESTREAM_STREAM__BATCH_EVENTS=512`), `--set stream.batch_events=512`, flags. A key's last part is enough for `--set`
where only one key has it. An unknown key is an error that names the nearest known one. `icestream config` prints the
resolved tree; each checkpoint holds it. `ICESTREAM_TRUST_GROUP` is no setting: see
[run-directory.md](run-directory.md#who-may-write).

Keys of `stream`, `seed` and the inputs belong to the plan: a run that resumes with others is refused, unless
`--new-plan` says to keep the weights and begin the new plan. (`stream.slots` may change at any time.)

This page is written by `make docs`.
"""


def page() -> str:
    """The page as it should be."""
    return HEAD + "".join(_section(Config, ""))


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


if __name__ == "__main__":
    PAGE.write_text(page())
