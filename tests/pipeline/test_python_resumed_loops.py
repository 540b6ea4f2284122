"""Every way to save and resume a loop over `icestream.stream` gives the batches of the undisturbed one.

The services of one stream serve all cases: each run begins with its state of the start, or of a checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from muon_files import make_events, write_events
from torch.utils.data import DataLoader

import icestream

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their warnings are not ours

BATCHES = 6
EPOCHS = 3
Ids = list[list[list[int]]]
"""Of each batch and event: major, minor."""


def ids(batch: icestream.RaggedBatch) -> list[list[int]]:
    found: list[list[int]] = batch.events["primary_id"].tolist()
    return found


@dataclass
class Runs:
    """A stream that begins again as often as wanted."""

    stream: icestream.EventStream
    start: dict[str, Any]
    undisturbed: Ids
    """Batches of EPOCHS epochs."""

    def begin(self) -> icestream.EventStream:
        """The stream as a new process has it: nothing is known of the runs before."""
        self.stream.load_state_dict(self.start)
        return self.stream


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("files")
    write_events(folder / "0.parquet", make_events([number % 3 for number in range(24)]), row_group_rows=6)
    with icestream.stream(folder, decoders=1, batch_events=4, device="cpu", settings={"stream.slot_mib": 1}) as stream:
        start = stream.state_dict()
        undisturbed = [ids(batch) for _ in range(EPOCHS) for batch in stream]
        assert len(undisturbed) == EPOCHS * BATCHES
        assert undisturbed[:BATCHES] != undisturbed[BATCHES : 2 * BATCHES]
        yield Runs(stream, start, undisturbed)


def stateful(stream: icestream.EventStream) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    return StatefulDataLoader(stream, batch_size=None)


LOADERS: dict[str, Callable[[icestream.EventStream], Any]] = {
    "DataLoader": lambda stream: DataLoader(stream, batch_size=None),
    "stream": lambda stream: stream,
    "StatefulDataLoader": stateful,
}


# ------------------------------------------------------------------ plain loops


def batches_of(loader: Iterable[icestream.RaggedBatch], epochs: int) -> Iterator[icestream.RaggedBatch]:
    for _ in range(epochs):
        num = 0
        for num, batch in enumerate(loader, 1):  # noqa: B007
            yield batch
        assert num, "no loop is empty"


@pytest.mark.parametrize("trained", [1, 4, BATCHES - 1, BATCHES, BATCHES + 1, 2 * BATCHES])
@pytest.mark.parametrize("saved", ["stream", "stream, after the batch", "loader"])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_loop_resumes_from_a_state_saved_behind_any_batch(runs: Runs, kind: str, saved: str, trained: int) -> None:
    """Saved inside of the loop, so that those behind the last batch of an epoch are there, too."""
    if saved == "loader" and kind == "DataLoader":
        pytest.skip("a DataLoader of torch has no state")
    stream = runs.begin()
    loader = LOADERS[kind](stream)
    found, state = [], {}
    for batch in itertools.islice(batches_of(loader, EPOCHS), trained):
        found.append(ids(batch))
        state = stream.state_dict(after=batch) if "after" in saved else stream.state_dict()
        state = loader.state_dict() if saved == "loader" else state

    stream = runs.begin()
    loader = LOADERS[kind](stream)
    (loader if saved == "loader" else stream).load_state_dict(state)
    found += [ids(batch) for batch in batches_of(loader, EPOCHS - trained // BATCHES)]
    assert found == runs.undisturbed


def test_of_two_loops_side_by_side_the_first_one_ends_with_an_error(runs: Runs) -> None:
    """Each would get every other batch."""
    stream = runs.begin()
    first, second = iter(stream), iter(stream)
    found = [ids(next(first))]
    found += [ids(next(second))]
    with pytest.raises(icestream.BadInputError, match="another loop over this stream has begun since"):
        next(first)
    found += [ids(batch) for batch in second]
    assert found == runs.undisturbed[:BATCHES]


def test_a_loop_that_has_had_its_last_batch_ends_though_another_one_begins_inside_of_it(runs: Runs) -> None:
    stream = runs.begin()
    found = []
    for batch in stream:
        found.append(ids(batch))
        if batch.is_last:
            found.append(ids(next(iter(stream))))
    assert found == runs.undisturbed[: BATCHES + 1]
    assert [ids(batch) for batch in stream] == runs.undisturbed[BATCHES + 1 : 2 * BATCHES]


def test_the_first_batch_of_a_resumed_loop_comes_again_only_if_nothing_of_it_was_read(runs: Runs) -> None:
    stream = runs.begin()
    state = stream.state_dict(after=next(iter(stream)))
    for is_read in (False, True):
        stream.load_state_dict(state)
        first = next(iter(stream))
        if is_read:
            assert first.num_events == 4
        assert ids(next(iter(stream))) == runs.undisturbed[1 + is_read]


# ------------------------------------------------------------------ Lightning


class StoppedError(Exception):
    """An error of the user's step."""


def counting(stream: icestream.EventStream, stop_at: int | None) -> Any:
    """Lightning module with the hooks that python.md shows; it fails at the batch of that number."""
    import lightning

    class Counting(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.stream = [stream]  # no part of the module
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: Ids = []

        def training_step(self, batch: icestream.RaggedBatch, index: int) -> torch.Tensor:
            if len(self.seen) == stop_at:
                raise StoppedError
            self.seen.append(ids(batch))
            self.last = batch
            return (self.weight - batch.counts.float().mean()).square()

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            self.log("loss", self.weight + batch.sum())

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["stream"] = self.stream[0].state_dict(after=self.last)
            checkpoint["trained"] = len(self.seen)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.stream[0].load_state_dict(checkpoint["stream"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Counting()


def callbacks_of(saving: str, folder: Path) -> list[Any]:
    from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

    if saving == "on exception":

        class Kept(OnExceptionCheckpoint):
            def teardown(self, *_: Any, **__: Any) -> None:
                """The file stays, as that of a process that ended."""

        return [Kept(folder, "saved")]
    options: dict[str, Any] = {
        "end of epoch": {},
        "every 4 steps": {"every_n_train_steps": 4},
        "every step": {"every_n_train_steps": 1},
        "save_last": {"save_last": True, "every_n_train_steps": 2},
    }
    return [ModelCheckpoint(folder, filename="saved", enable_version_counter=False, **options[saving])]


@dataclass(frozen=True)
class Way:
    """How Lightning trains."""

    accumulate: int = 1
    validation: int = 0
    """Batches after which it validates; 0: never, -1: at the end of each epoch."""

    def fit(self, runs: Runs, kind: str, callbacks: list[Any], stop_at: int | None, checkpoint: Path | None) -> Any:
        import lightning

        stream = runs.begin()
        module = counting(stream, stop_at)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            accumulate_grad_batches=self.accumulate,
            val_check_interval=self.validation if self.validation > 0 else 1.0,
            num_sanity_val_steps=0,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=bool(callbacks),
            callbacks=callbacks,
        )
        val: Any = DataLoader([torch.zeros(1)] * 2) if self.validation else None  # type: ignore[arg-type]
        trainer.fit(module, LOADERS[kind](stream), val, ckpt_path=checkpoint, weights_only=True)
        return module


WAYS = {
    "plain": Way(),
    "accumulation": Way(accumulate=2),
    "validation": Way(validation=-1),
    "validation every 2": Way(validation=2),
}


STOPS = [BATCHES - 1, BATCHES, 2 * BATCHES + 2]


@pytest.mark.parametrize(
    ("way", "stop_at"), [*(("plain", stop) for stop in STOPS), *((way, STOPS[-1]) for way in WAYS if way != "plain")]
)
@pytest.mark.parametrize("saving", ["end of epoch", "every 4 steps", "every step", "save_last", "on exception"])
@pytest.mark.parametrize("kind", LOADERS)
def test_lightning_resumes_with_the_batches_of_an_undisturbed_run(
    runs: Runs, kind: str, saving: str, way: str, stop_at: int, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        WAYS[way].fit(runs, kind, callbacks_of(saving, tmp_path), stop_at, None)
    path = next((path for name in ("last", "saved") if (path := tmp_path / f"{name}.ckpt").exists()), None)
    trained = torch.load(path, weights_only=True)["trained"] if path else 0
    resumed = WAYS[way].fit(runs, kind, [], None, path)
    assert runs.undisturbed[:trained] + resumed.seen == runs.undisturbed
