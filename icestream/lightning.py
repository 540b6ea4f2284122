"""Lightning: a callback that keeps a stream's place in its checkpoints, and a data module of streams.

Lightning is no dependency: either of its packages, `lightning` and `pytorch_lightning`, is used where there is one.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from common.errors import BadInputError
from common.options import Paths, given_path
from icestream.stream_session import HANDED_OUT
from icestream.streaming import EventStream, RaggedBatch, stream

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

    _CALLBACKS, _DATA_MODULES = (Callback,), (LightningDataModule,)
else:
    _PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
    # The caller's is the one that was imported. Before that it may become either, so that the classes are of both.
    _NAMES = [name for name in _PACKAGES if name in sys.modules] or [name for name in _PACKAGES if find_spec(name)]
    if not _NAMES:
        raise ImportError("icestream.lightning needs Lightning, which is not installed: pip install lightning")
    _MODULES = [import_module(_PACKAGES[name]) for name in _NAMES]
    _CALLBACKS = tuple(module.Callback for module in _MODULES)
    _DATA_MODULES = tuple(module.LightningDataModule for module in _MODULES)


logger = logging.getLogger("icestream")


class StreamCallback(*_CALLBACKS):  # type: ignore[misc]
    """Callback that saves the place of a stream in each checkpoint, and continues there when one is loaded.

    The place is behind the last batch that was trained, however many Lightning has fetched in advance. The loader is
    `DataLoader(stream, batch_size=None)`, the stream itself, or torchdata's StatefulDataLoader.
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        stream.ends_are_watched = True
        self._is_of_training = True
        self._begin: Mapping[str, Any] = stream.state_dict()
        """State of the stream before the first batch of this fit."""
        self._last: RaggedBatch | None = None
        """Last batch that was trained in this fit."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Note where a fit begins; a validation that loads a checkpoint leaves the place as it is."""
        self._is_of_training = stage == "fit"
        self._begin, self._last = self._stream.state_dict(), None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Correct the number of batches of an epoch: Lightning counts on len(stream), which may be above it."""
        loop, num = trainer.fit_loop, batch_idx + 1
        if not isinstance(batch, RaggedBatch) or not math.isfinite(loop.max_batches):
            return
        loop.epoch_loop.batch_progress.is_last_batch |= batch.is_last
        batches = num if batch.is_last else max(int(loop.max_batches), num + 1)
        if batches != loop.max_batches:
            loop.max_batches = batches
            if isinstance(trainer.val_check_interval, float) and trainer.check_val_every_n_epoch is not None:
                trainer.val_check_batch = max(int(batches * trainer.val_check_interval), 1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Keep the batch. Raises BadInputError if it is no RaggedBatch any more."""
        if not isinstance(batch, RaggedBatch):
            raise BadInputError(
                f"StreamCallback: a batch is a {type(batch).__name__}, which has no place in the stream: give Lightning"
                " the stream's own batches, and transform them in training_step"
            )
        self._last = batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the stream after the last batch that was trained."""
        if self._last is not None:
            return self._stream.state_dict(after=self._last)
        return {**self._begin, HANDED_OUT: self._stream.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state. Raises BadInputError if it is of another stream."""
        if self._is_of_training:
            self._stream.load_state_dict(state_dict)
            self._begin, self._last = state_dict, None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Go back behind the last batch that was trained, so that the next fit loses none that was fetched."""
        if self._is_of_training:
            self._stream.load_state_dict(self.state_dict())


class StreamDataModule(*_DATA_MODULES):  # type: ignore[misc]
    """Data module of a training stream and a validation stream: `trainer.fit(module, StreamDataModule("data"))`.

    It brings a StreamCallback along, so that training resumes from any checkpoint. All validations are alike.
    """

    def __init__(self, inputs: Paths | None = None, *, validation: Paths | None = None, **arguments: Any) -> None:
        """``validation``: files of the validation; default: the part of ``inputs`` that `stream.held_out` sets aside.

        ``arguments``: those of icestream.stream, for both streams. ``device`` is the trainer's if it is not given.
        """
        super().__init__()
        self._arguments = {"inputs": inputs, **arguments}
        self._validation_files = validation
        self.train: EventStream | None = None
        """Stream of the training; None before setup()."""
        self.validation: EventStream | None = None
        """Stream of the validation; None before setup(), and if there are no events for it."""

    def setup(self, stage: str) -> None:
        """Make the streams, once the trainer knows its ranks, and add the callback to the trainer."""
        trainer = self.trainer
        device = trainer.strategy.root_device
        if trainer.world_size > 1:  # Lightning's own launcher sets less than torchrun
            place = {"RANK": trainer.global_rank, "WORLD_SIZE": trainer.world_size, "LOCAL_RANK": trainer.local_rank}
            place["LOCAL_WORLD_SIZE"] = trainer.world_size // trainer.num_nodes
            os.environ.update({name: str(number) for name, number in place.items()})
            device = device.type  # each rank takes its own GPU
        arguments = {"device": device, **self._arguments}
        if self.train is None:
            self.train = stream(**arguments)
            of_validation: dict[str, Any] = {"part": "held_out"}
            if self._validation_files is not None:
                of_validation = {"part": "all", "inputs": self._validation_files}
            if arguments.get("run_dir") is not None:
                of_validation["run_dir"] = given_path(arguments["run_dir"], "run_dir") / "validation"
            if self._validation_files is not None or self.train.config.stream.held_out:
                self.validation = stream(**{**arguments, **of_validation, "restart": True, "shuffle": False})
                self.validation.ends_are_watched = True  # Lightning ends a validation behind its last batch
            else:
                logger.warning("no validation: give validation=FILES, or settings={'stream.held_out': 0.05}")
        if stage == "fit" and not any(isinstance(callback, StreamCallback) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, StreamCallback(self.train))

    def train_dataloader(self) -> object:
        """Return the stream of the training."""
        return self.train

    def val_dataloader(self) -> object:
        """Return the stream of the validation, or no loader."""
        return self.validation if self.validation is not None else []

    def on_exception(self, exception: BaseException) -> None:
        """Stop the streams' processes."""
        self.teardown("fit")

    def teardown(self, stage: str) -> None:
        """Stop the streams' processes. The next fit continues where this one ended."""
        for one in filter(None, (self.train, self.validation)):
            one.close()
