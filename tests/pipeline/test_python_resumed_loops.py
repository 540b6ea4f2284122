"""Loops over `icestream.stream`, saved and resumed in every way, and in a Jupyter kernel, get the undisturbed batches.

The services of one stream serve all cases: each run begins with its state of the start, or of a checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jupyter_client.manager import KernelManager, start_new_kernel
from muon_files import make_events, write_events
from proc import WAIT_S, wait_for
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
    validation: icestream.EventStream
    validated: Ids
    """Batches of each validation."""

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
        with icestream.stream(folder, decoders=1, batch_events=8, device="cpu", restart=True) as validation:
            yield Runs(stream, start, undisturbed, validation, [ids(batch) for batch in validation])


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


@pytest.mark.parametrize("trained", [1, BATCHES - 1, BATCHES, BATCHES + 1])
@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        *(("DataLoader", saved) for saved in ("stream", "stream, after")),
        *(("stream", saved) for saved in ("stream", "stream, after")),
        *(("StatefulDataLoader", saved) for saved in ("stream", "loader")),
    ],
)
def test_a_loop_resumes_from_a_state_saved_behind_any_batch(runs: Runs, kind: str, saved: str, trained: int) -> None:
    """Saved inside of the loop, so that those behind the last batch of an epoch are there, too."""
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


def test_a_data_loader_with_workers_is_refused(runs: Runs) -> None:
    with pytest.raises(icestream.BadInputError, match="use num_workers=0; its decoders are the workers"):
        next(iter(DataLoader(runs.begin(), batch_size=None, num_workers=1)))


# ------------------------------------------------------------------ Lightning


class StoppedError(Exception):
    """An error of the user's step."""


def counting(stop_at: int | None) -> Any:
    """Lightning module that fails at the batch of that number."""
    import lightning

    class Counting(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: Ids = []
            self.validations: list[Ids] = []

        def training_step(self, batch: icestream.RaggedBatch, index: int) -> torch.Tensor:
            if len(self.seen) == stop_at:
                raise StoppedError
            self.seen.append(ids(batch))
            return (self.weight - batch.counts.float().mean()).square()

        def on_validation_start(self) -> None:
            self.validations.append([])

        def validation_step(self, batch: icestream.RaggedBatch, index: int) -> None:
            self.validations[-1].append(ids(batch))
            self.log("loss", self.weight, batch_size=len(batch))

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["trained"] = len(self.seen)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Counting()


SAVINGS = ("end of epoch", "every 2 steps", "save_last", "exception")


def saving(kind: str, folder: Path) -> Any:
    """Lightning's callback that saves at these times."""
    from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

    if kind == "exception":
        return OnExceptionCheckpoint(folder, "last")
    every = {"end of epoch": None, "every 2 steps": 2, "save_last": 1}[kind]
    is_last, name = (True, "other") if kind == "save_last" else (None, "last")
    return ModelCheckpoint(folder, name, save_last=is_last, every_n_train_steps=every, enable_version_counter=False)


LOOPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate_grad_batches": 4},
    "validated": {"val_check_interval": 2},
}
"""Options of Lightning's trainer; validations begin with its own sanity check."""


def fit(
    stream: icestream.EventStream, kind: str, *callbacks: Any, stop_at: int | None = None, **options: Any
) -> tuple[Any, Any]:
    """Train with Lightning; the module, and the trainer."""
    import lightning

    from icestream.lightning import StreamCallback

    module = counting(stop_at)
    checkpoint, validation = options.pop("checkpoint", None), options.pop("validation", None)
    trainer = lightning.Trainer(
        **{"max_epochs": EPOCHS, "accelerator": "cpu", "logger": False},
        **{"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": bool(callbacks)},
        callbacks=[StreamCallback(stream), *callbacks],
        **options,
    )
    with pytest.raises(StoppedError) if stop_at is not None else nullcontext():
        trainer.fit(module, LOADERS[kind](stream), validation, ckpt_path=checkpoint, weights_only=True)
    return module, trainer


LATE = (2 * BATCHES + 2,)


@pytest.mark.parametrize(
    ("kind", "times", "loop", "stops"),
    [
        *itertools.product(["DataLoader"], SAVINGS, LOOPS, [LATE]),
        # The other loaders differ in what they fetch in advance, not in when Lightning saves.
        *((kind, times, loop, LATE) for kind in list(LOADERS)[1:] for times, loop in zip(SAVINGS, LOOPS, strict=False)),
        ("DataLoader", "exception", "validated", (0,)),
        *itertools.product(
            ["DataLoader"], ["exception"], ["accumulated", "validated"], [(BATCHES - 1, 0), (BATCHES, 1)]
        ),
    ],
)
def test_lightning_resumes_with_the_batches_of_an_undisturbed_run(
    runs: Runs, kind: str, times: str, loop: str, stops: tuple[int, ...], tmp_path: Path
) -> None:
    found: Ids = []
    path, options = None, LOOPS[loop] | ({"validation": runs.validation} if loop == "validated" else {})
    for stop_at in (*stops, None):
        callbacks = [] if stop_at is None else [saving(times, tmp_path)]
        module, _ = fit(runs.begin(), kind, *callbacks, stop_at=stop_at, checkpoint=path, **options)
        path = tmp_path / "last.ckpt"
        found += module.seen[: None if stop_at is None else torch.load(path, weights_only=True)["trained"]]
        assert all(batches == runs.validated for batches in module.validations[1:]), "the first may be a sanity check"
    assert found == runs.undisturbed


def test_a_fit_goes_on_where_the_former_one_ended_though_lightning_had_fetched_in_advance(runs: Runs) -> None:
    stream, found = runs.begin(), []
    for _ in range(2):
        found += fit(stream, "DataLoader", max_steps=4)[0].seen
    assert found == runs.undisturbed[:8]


def test_a_validation_from_a_checkpoint_leaves_the_training_where_it_is(runs: Runs, tmp_path: Path) -> None:
    module, trainer = fit(runs.begin(), "DataLoader", saving("every 2 steps", tmp_path), max_steps=5)
    state = runs.stream.state_dict()
    trainer.validate(module, runs.validation, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert module.validations == [runs.validated]
    assert runs.stream.state_dict() == state


def test_the_callback_corrects_the_number_of_batches_and_refuses_those_without_a_place(runs: Runs) -> None:
    from icestream.lightning import StreamCallback

    progress = SimpleNamespace(is_last_batch=False)
    loop = SimpleNamespace(max_batches=8, epoch_loop=SimpleNamespace(batch_progress=progress))
    trainer = SimpleNamespace(fit_loop=loop, val_check_interval=1.0, check_val_every_n_epoch=1, val_check_batch=8)
    callback = StreamCallback(runs.stream)
    for expected in (8, 3):
        loop.max_batches = trainer.val_check_batch = expected
        for number, batch in enumerate(runs.begin()):
            callback.on_train_batch_start(trainer, None, batch, number)
        assert loop.max_batches == trainer.val_check_batch == BATCHES
    with pytest.raises(icestream.BadInputError, match="a batch is a dict, which has no place in the stream"):
        callback.on_train_batch_end(trainer, None, None, {}, 0)


def test_the_data_module_resumes_with_the_callback_that_it_brings_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import lightning

    from icestream.lightning import StreamDataModule

    (tmp_path / "files").mkdir()
    write_events(tmp_path / "files/0.parquet", make_events([1] * 60), row_group_rows=6)
    trained: Counter[tuple[int, ...]] = Counter()
    for stop_at, num_validations in ((7, 1), (None, 2)):
        settings = {"stream.held_out": 0.3, "stream.slot_mib": 1}
        data = StreamDataModule(tmp_path / "files", batch_events=4, run_dir=tmp_path / "run", settings=settings)
        module, saved = counting(stop_at), saving("exception", tmp_path)
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, callbacks=[saved])
        with pytest.raises(StoppedError) if stop_at is not None else nullcontext():
            trainer.fit(module, data, ckpt_path=tmp_path / "last.ckpt" if trained else None, weights_only=True)
        assert len(module.validations) == num_validations, "each epoch has one, a fresh start a short one"
        trained.update(tuple(event) for batch in module.seen for event in batch)
        validated = {tuple(event) for batch in module.validations[-1] for event in batch}
        assert not trained.keys() & validated
    assert len(trained) + len(validated) == 60
    assert set(trained.values()) == {2}, "in each epoch once"
    assert "promised more" not in caplog.text


def test_the_data_module_knows_its_rank_where_lightning_starts_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icestream.lightning import StreamDataModule

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # and restored
    write_events(tmp_path / "0.parquet", make_events([1] * 6))
    data = StreamDataModule(tmp_path)
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    ranks = {"world_size": 4, "global_rank": 1, "local_rank": 1, "num_nodes": 2}
    data.trainer = SimpleNamespace(strategy=strategy, callbacks=[], **ranks)
    data.setup("fit")
    place = data.train._ways.place
    assert (place.rank, place.size, place.local_rank, place.local_size) == (1, 4, 1, 2)


def test_either_package_of_lightning_is_used_and_named_where_there_is_none() -> None:
    code = """
import importlib.util, sys
import icestream.streaming
found, importlib.util.find_spec = importlib.util.find_spec, lambda name: None
try:
    import icestream.lightning
except ImportError as error:
    assert "which is not installed: pip install lightning" in str(error), error
else:
    raise AssertionError("it was imported")
importlib.util.find_spec = found
from icestream.lightning import StreamCallback, StreamDataModule
import pytorch_lightning as caller
assert issubclass(StreamCallback, caller.Callback) and issubclass(StreamDataModule, caller.LightningDataModule)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(icestream.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ a Jupyter kernel


class Notebook:
    """Cells that are run one after the other."""

    def __init__(self, manager: KernelManager, client: Any) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, interrupt_at: str = "") -> str:
        """What a cell prints, or the error that ends it; interrupted, as by the button, once it has printed a text."""
        printed = ""

        def hear(message: dict[str, Any]) -> None:
            nonlocal printed
            printed += message["content"].get("text", "")
            if interrupt_at and interrupt_at in message["content"].get("text", ""):
                self._manager.interrupt_kernel()

        answer = self._client.execute_interactive(code, timeout=WAIT_S, allow_stdin=False, output_hook=hear)
        return str(answer["content"].get("ename") or printed.strip())

    def shut_down(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = str(tmp_path_factory.mktemp("ipython"))
    environment = os.environ | {"PYTHONPATH": str(Path(icestream.__file__).parents[1]), "IPYTHONDIR": folder}
    found = Notebook(*start_new_kernel(startup_timeout=WAIT_S, kernel_name="python3", env=environment))
    yield found
    found.shut_down()


@pytest.mark.timeout(120)
def test_the_cells_of_the_example_notebook_run(notebook: Notebook, tmp_path: Path) -> None:
    cells = json.loads((Path(icestream.__file__).parents[1] / "examples/notebook.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert notebook.run(f"import os; os.chdir({str(tmp_path)!r})") == ""
    assert not any("Error" in notebook.run(source) for source in sources)
    assert notebook.run("print(len(losses))") == "3"


CELL = """
stream = icestream.stream(files, device="cpu", decoders=1, batch_events=10)
print(len(next(iter(stream))), len(list(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())))
"""


def test_a_cell_is_run_again_interrupted_and_continued_as_one_does_in_a_notebook(
    notebook: Notebook, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    write_events(tmp_path / "files/one.parquet", make_events([number % 5 for number in range(60)], first=0))
    assert not notebook.run(f"import os, time, icestream\nfrom pathlib import Path\nfiles = '{tmp_path}/files'")
    assert notebook.run(CELL) == notebook.run(CELL) == "10 1", "the first stream ended when its name was given away"
    loop = "for batch in stream:\n    print('batch', flush=True)\n    time.sleep(600)"
    assert notebook.run(loop, interrupt_at="batch") == "KeyboardInterrupt"
    assert notebook.run("print(sum(len(batch) for batch in stream))") == "40", "all but the two that were handed out"
    folder = Path(notebook.run("print(stream.run_dir)"))
    notebook.shut_down()
    wait_for(lambda: not folder.exists(), f"{folder} was left behind")
