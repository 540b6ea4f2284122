"""Weights & Biases sink, the optional extra `icestream[wandb]`: the same names as on TensorBoard.

wandb itself finds its key (WANDB_API_KEY, or `wandb login`): icestream neither reads nor stores it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.extras import missing_extra
from common.private_path import require_private
from common.redact import without_secrets
from services.config.trainer import WandbConfig
from services.trainer.telemetry.sinks import Setting
from workloads.base.evaluator import Histogram, Image

logger = logging.getLogger(__name__)

WANDB_FOLDER = "wandb"
_ID_FILE = "icestream-run-id"


class WandbSink:
    """Sink with one run at wandb over all restarts of a run directory; its x axis is ``step``.

    wandb's own step can only grow. So each record holds the training step as a number, and after a restart the steps
    behind the checkpoint exist twice.
    """

    def __init__(self, run_dir: Path, config: WandbConfig, name: str, settings: Mapping[str, Setting]) -> None:
        """Raises BadInputError if the extra is missing, if wandb refuses, or if others could choose its server."""
        try:
            import wandb  # an optional extra
        except ImportError:
            raise missing_extra(
                f"trainer.wandb.mode = {config.mode!r}", "wandb", "set trainer.wandb.mode = off"
            ) from None
        _require_own_settings()
        self._wandb: Any = wandb
        self._run = self._start(run_dir, config, name, settings)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        made = {name: self._wandb.Histogram(np_histogram=(one.counts, one.edges)) for name, one in values.items()}
        self._run.log({**made, "step": step})

    def images(self, values: Mapping[str, Image], step: int) -> None:
        self._run.log({**{name: self._wandb.Image(one) for name, one in values.items()}, "step": step})

    def go_back(self, step: int) -> None:
        del step  # see the class

    def flush(self) -> None:
        """Nothing to do: a process of wandb's own writes the records."""

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()  # finish() returns before wandb's process has written the last records

    def _start(self, run_dir: Path, config: WandbConfig, name: str, settings: Mapping[str, Setting]) -> Any:
        # wandb would also upload details of the machine, the command line and the code: disabled for privacy.
        quiet = self._wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        arguments: dict[str, Any] = {
            "project": config.project,
            "entity": config.entity or None,
            "tags": list(config.tags),
            "name": name,
            "id": _run_id(run_dir),
            "resume": "allow",
            "dir": str(run_dir),
            "config": dict(settings),
            "settings": quiet,
        }
        errors = self._wandb.errors
        try:
            return self._wandb.init(mode=config.mode, **arguments)
        except (errors.UsageError, errors.AuthenticationError) as error:
            raise BadInputError(
                f"trainer.wandb: {_one_line(error)}; log in with `wandb login`, or set trainer.wandb.mode = offline"
            ) from None
        except errors.CommError as error:
            logger.warning(
                "wandb can't be reached (%s): this start is recorded offline; `wandb sync %s` sends it later",
                _one_line(error),
                run_dir / WANDB_FOLDER / "offline-run-*",
            )
            return self._wandb.init(mode="offline", **arguments)


def _require_own_settings() -> None:
    """Raise BadInputError if others can change what wandb reads in the current folder, such as the server that gets
    the key."""
    require_private(Path.cwd(), "wandb reads its settings in the current folder,")
    for name in ("wandb", ".wandb"):
        with suppress(FileNotFoundError):
            require_private(Path.cwd() / name / "settings", "wandb's settings,")


def run_name(run_dir: Path, started: str) -> str:
    """Name of a run at wandb: its directory's, and the time of its start (UTC) as `YYYYMMDD_HHMMSS`.

    ``started``: in the name of its TensorBoard folder, `YYYY-MM-DDTHH-MM-SS`.
    """
    return f"{run_dir.resolve().name}-{started.replace('-', '').replace('T', '_')}"


def _run_id(run_dir: Path) -> str:
    path = run_dir / WANDB_FOLDER / _ID_FILE
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(8))
    return path.read_text()


def _one_line(error: Exception) -> str:
    return without_secrets(" ".join(str(error).split()))[:300]
