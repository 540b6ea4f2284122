"""Values that a start gives besides the stored configuration: settings of no use, and code that it names itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.own_code import OWN_SECTION, is_own, section_name
from services.config.root import Config, read_toml, typed_settings
from services.config.trainer import NO_MODEL, model_names


def require_named_model(
    config: Config,
    *,
    toml: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Raise BadInputError if the model is code of the user's own, and this start does not name it itself.

    A stored configuration may be anybody's: no code runs because such a file names it.
    """
    model = config.trainer.model
    given = [flags.get("trainer.model")]
    given += [read_toml(toml).get("trainer", {}).get("model")] if toml is not None else []
    given += [value for key, value in typed_settings(assignments, environment, []) if key == "trainer.model"]
    if is_own(model) and model not in given:
        raise BadInputError(
            f"the stored configuration names the model {model}, which is code of your own: if you trust it, name it in"
            f" this start, too: --model {model}"
        )


def unused_settings(
    config: Config,
    *,
    toml: Path | None = None,
    assignments: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Lines about settings that were given for another model than that of ``config``.

    A TOML file may have sections of several models: it is told only if it names another model itself.
    """
    model = config.trainer.model
    if model == NO_MODEL:
        return []
    lines = []
    wanted = read_toml(toml).get("trainer", {}).get("model", model) if toml else model
    if wanted != model:
        lines.append(f"{toml}: made for the model {wanted}, but the model {model} was asked for and is trained")
    others = tuple(f"trainer.{name}." for name in (*model_names(), OWN_SECTION) if name != section_name(model))
    keys = dict.fromkeys(key for key, _ in typed_settings(assignments, environment, []) if key.startswith(others))
    return [*lines, *(f"{key}: not used by the model {model}" for key in keys)]
