"""Wait for the configuration that a run's fetcher stores, so that services can be started in any order."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.process import StopFlag
from common.run_dir import CONFIG_FILE
from services.config.root import Config, load_config

logger = logging.getLogger(__name__)


def wait_for_config(
    run_dir: Path,
    stop: StopFlag,
    *,
    toml: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Config | None:
    """Configuration of the run once it is stored; None if a stop is requested before.

    Raises BadInputError after transport.connect_timeout_s.
    """
    timeout_s = load_config(run_dir, toml=toml, assignments=assignments, flags=flags).transport.connect_timeout_s
    deadline_s = time.monotonic() + timeout_s
    told = False
    while not (run_dir / CONFIG_FILE).exists():
        if stop:
            return None
        if time.monotonic() > deadline_s:
            raise BadInputError(f"{run_dir}: no run was started here for {timeout_s:g} s; start its fetcher")
        if not told:
            logger.info(
                "waiting for a run to be started in %s%s", run_dir, "" if run_dir.is_dir() else " (no such folder)"
            )
            told = True
        time.sleep(0.1)
    return load_config(run_dir, toml=toml, assignments=assignments, flags=flags)
