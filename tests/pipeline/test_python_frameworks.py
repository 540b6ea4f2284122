"""`icestream.stream` in DataLoaders of torch and torchdata, in Lightning and Accelerate: same batches, exact resume."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from muon_files import make_events, write_events
from torch.utils.data import DataLoader

import icestream

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their warnings are not ours

BATCHES = 10
Ids = list[list[list[int]]]
"""Of each batch and event: major, minor."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for index in range(2):
        events = make_events([number % 5 for number in range(100)], first=100 * index)
        write_events(folder / f"{index}.parquet", events, row_group_rows=20)
    return folder


def made(files: Path) -> icestream.EventStream:
    settings = {"stream.block_files": 2, "stream.slot_mib": 1}
    return icestream.stream(files, decoders=1, batch_events=20, device="cpu", settings=settings)


def ids(batch: icestream.RaggedBatch) -> list[list[int]]:
    found: list[list[int]] = batch.events["primary_id"].tolist()
    return found


@pytest.fixture(scope="module")
def reference(files: Path) -> Ids:
    with made(files) as stream:
        found = [ids(batch) for batch in stream]
    assert len(found) == BATCHES
    assert sorted(sum(found, [])) != sum(found, [])  # noqa: RUF017
    return found


def test_a_plain_data_loader_gives_the_same_batches_and_refuses_workers(files: Path, reference: Ids) -> None:
    with made(files) as stream:
        assert [ids(batch) for batch in DataLoader(stream, batch_size=None)] == reference
        with pytest.raises(icestream.BadInputError, match="use num_workers=0; its decoders are the workers"):
            next(iter(DataLoader(stream, batch_size=None, num_workers=1)))


def test_a_stateful_data_loader_of_torchdata_saves_and_restores_the_place_in_the_stream(
    files: Path, reference: Ids
) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    with made(files) as stream:
        loader = StatefulDataLoader(stream, batch_size=None)
        found = [ids(batch) for batch in islice(loader, 4)]
        state = loader.state_dict()
    with made(files) as stream:
        loader = StatefulDataLoader(stream, batch_size=None)
        loader.load_state_dict(state)
        found += [ids(batch) for batch in loader]
    assert found == reference


def test_accelerate_trains_on_a_stream_and_its_saved_state_has_the_place_in_it(
    files: Path, tmp_path: Path, reference: Ids
) -> None:
    """The stream itself is not prepared: it shares its events between the ranks, and batches are on their device."""
    from accelerate import Accelerator

    def train(steps: int, *, resume: bool) -> Ids:
        accelerator = Accelerator(cpu=True)
        weight = torch.nn.Linear(1, 1)
        model, optimiser = accelerator.prepare(weight, torch.optim.SGD(weight.parameters(), 0.01))
        with made(files) as stream:
            accelerator.register_for_checkpointing(stream)
            if resume:
                accelerator.load_state(str(tmp_path))
            found = []
            for batch in islice(stream, steps):
                found.append(ids(batch))
                accelerator.backward(model(batch.counts[:, None].float()).square().mean())
                optimiser.step()
            accelerator.save_state(str(tmp_path), safe_serialization=False)
        accelerator.free_memory()
        return found

    assert train(4, resume=False) + train(BATCHES, resume=True) == reference


def test_a_state_saved_behind_the_last_batch_of_an_epoch_is_the_start_of_the_next_one(
    files: Path, reference: Ids
) -> None:
    """Saved within the loop, with and without ``after``, and by StatefulDataLoader: no resumed loop is empty."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    with made(files) as stream:
        loader, states = StatefulDataLoader(stream, batch_size=None), []
        for number, batch in enumerate(loader, 1):
            if number == BATCHES:
                assert batch.is_last
                states = [stream.state_dict(), stream.state_dict(after=batch), loader.state_dict()]
        assert (stream.epoch, len(states)) == (1, 3)
        undisturbed = [ids(batch) for batch in stream]
    assert len(undisturbed) == BATCHES
    assert undisturbed != reference
    for number, state in enumerate(states):
        with made(files) as stream:
            loader = StatefulDataLoader(stream, batch_size=None)
            (loader if number == 2 else stream).load_state_dict(state)
            assert [ids(batch) for batch in (loader if number == 2 else stream)] == undisturbed
            assert stream.epoch == 2


def _counting(stream: icestream.EventStream) -> Any:
    """Return a Lightning module that keeps the ids of its batches, with the hooks that python.md shows."""
    import lightning

    class Counting(lightning.LightningModule):
        def __init__(self, stream: icestream.EventStream) -> None:
            super().__init__()
            self.stream = [stream]  # no part of the module
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: Ids = []

        def training_step(self, batch: icestream.RaggedBatch, index: int) -> torch.Tensor:
            self.seen.append(ids(batch))
            self.last = batch
            return (self.weight - batch.counts.float().mean()).square()

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["stream"] = self.stream[0].state_dict(after=self.last)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.stream[0].load_state_dict(checkpoint["stream"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Counting(stream)


@pytest.mark.parametrize("every", [{}, {"every_n_train_steps": 7}], ids=["end of epoch", "every 7 steps"])
def test_lightning_resumes_from_its_own_checkpoints_with_the_batches_of_an_undisturbed_run(
    every: dict[str, int], files: Path, tmp_path: Path
) -> None:
    """Its default ModelCheckpoint saves at the end of an epoch; accumulation changes nothing."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    def fit(epochs: int, checkpoint: Path | None = None) -> Ids:
        with made(files) as stream:
            module = _counting(stream)
            trainer = lightning.Trainer(
                max_epochs=epochs,
                accelerator="cpu",
                accumulate_grad_batches=1 if every else 2,
                logger=False,
                enable_progress_bar=False,
                callbacks=[ModelCheckpoint(tmp_path / str(epochs), filename="saved", **every)],
            )
            trainer.fit(module, DataLoader(stream, batch_size=None), ckpt_path=checkpoint, weights_only=True)
            return module.seen

    undisturbed = fit(3)
    assert len(undisturbed) == 3 * BATCHES
    before = fit(1)
    trained = 7 if every else BATCHES
    assert before[:trained] + fit(3, tmp_path / "1" / "saved.ckpt") == undisturbed


def test_lightning_trains_on_a_stream_and_resumes_after_the_batch_that_it_trained_last(
    files: Path, tmp_path: Path, reference: Ids
) -> None:
    """Lightning fetches a batch ahead: the module saves the state after the batch of its own last step."""
    import lightning

    def fit(max_steps: int, checkpoint: Path | None = None) -> Ids:
        with made(files) as stream:
            module = _counting(stream)
            trainer = lightning.Trainer(
                max_steps=max_steps,
                max_epochs=-1,
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_checkpointing=False,
                default_root_dir=tmp_path,
            )
            trainer.fit(module, DataLoader(stream, batch_size=None), ckpt_path=checkpoint, weights_only=True)
            trainer.save_checkpoint(tmp_path / "last.ckpt")
            return module.seen

    found = fit(4)
    assert len(found) == 4
    found += fit(BATCHES, tmp_path / "last.ckpt")
    assert found == reference
