"""A trainer that gets its units over tcp, with CURVE, in a run directory of its own: it trains the same stream."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from runs import Process, Processes, settings
from showers import Undisturbed

from common.run_dir import CONFIG_FILE
from icestream.commands.keys import keys as make_keys

pytestmark = pytest.mark.slow


@dataclass
class TwoPlaces:
    """Fetcher and decoder in one run directory, the trainer in another."""

    here: Processes
    there: Processes
    options: list[str]
    keys: Path

    def start_fetcher(self, listen: str) -> Process:
        return self.here.start(
            "fetcher", *self.options, *settings(f"transport.listen={listen}", f"transport.keys={self.keys}")
        )

    def address(self, fetcher: Process) -> str:
        """Where the fetcher listens; the run's configuration is brought to the trainer."""
        address = self.here.wait_in(fetcher, lambda: self.here.fetcher.listen, "the fetcher's address")
        self.there.run_dir.mkdir(exist_ok=True)
        shutil.copy(self.here.run_dir / CONFIG_FILE, self.there.run_dir)
        return address

    def start_trainer(self, address: str, environment: Mapping[str, str] | None = None) -> Process:
        keys = str(self.keys / "for-trainer")
        return self.there.start("trainer", "--connect", address, "--keys", keys, environment=environment)

    def assert_the_same_end(self, processes: list[Process], undisturbed: Undisturbed) -> None:
        for process in processes:
            owner = self.here if process in self.here.started else self.there
            assert owner.finish(process) == 0, f"{self.here.report()}\n{self.there.report()}"
        undisturbed.assert_same(self.there)
        assert not self.here.trainer.step, "nothing was trained here"
        secret = (self.keys / "server.key_secret").read_text().partition("secret-key = ")[2].strip().strip('"')
        assert len(secret) == 40
        for path in [*self.here.run_dir.rglob("*"), *self.there.run_dir.rglob("*"), *self.here.logs.glob("*.log")]:
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.fixture
def two_places(tmp_path: Path, processes: Processes, command: list[str]) -> Iterator[TwoPlaces]:
    result = CliRunner().invoke(make_keys, [str(tmp_path / "keys")])
    assert result.exit_code == 0, result.output
    logs = tmp_path / "logs-there"
    logs.mkdir()
    there = Processes(tmp_path / "there", logs)
    *inputs_and_settings, _, epochs = command
    try:
        yield TwoPlaces(processes, there, [*inputs_and_settings, *settings(f"epochs={epochs}")], tmp_path / "keys")
        there.assert_nothing_is_left()
    finally:
        there.end()


def test_a_trainer_elsewhere_trains_the_same_stream(two_places: TwoPlaces, undisturbed: Undisturbed) -> None:
    fetcher = two_places.start_fetcher("tcp://127.0.0.1:*")
    decoder = two_places.here.start("decoder")
    trainer = two_places.start_trainer(two_places.address(fetcher))
    two_places.assert_the_same_end([trainer, fetcher, decoder], undisturbed)
    assert "with one of the keys in" in fetcher.output()
    assert two_places.there.summary()["exit_status"] == "finished"


def test_a_trainer_elsewhere_that_was_killed_goes_on_from_its_checkpoint(
    two_places: TwoPlaces, undisturbed: Undisturbed
) -> None:
    fetcher = two_places.start_fetcher("tcp://127.0.0.1:*")
    decoder = two_places.here.start("decoder")
    address = two_places.address(fetcher)
    trainer = two_places.start_trainer(address, two_places.there.brake(5))
    two_places.there.wait_in(trainer, lambda: two_places.there.checkpoint_step() >= 5, "a checkpoint")
    trainer.send(signal.SIGKILL)
    two_places.there.finish(trainer)
    assert two_places.there.checkpoint_step() < undisturbed.steps - 20
    again = two_places.start_trainer(address)
    two_places.assert_the_same_end([again, fetcher, decoder], undisturbed)
    assert "resumes from step-" in again.output()


def test_a_trainer_elsewhere_outlives_its_fetcher(two_places: TwoPlaces, undisturbed: Undisturbed) -> None:
    fetcher = two_places.start_fetcher("tcp://127.0.0.1:*")
    decoder = two_places.here.start("decoder")
    address = two_places.address(fetcher)
    trainer = two_places.start_trainer(address, two_places.there.brake(5))
    two_places.there.wait_in(trainer, lambda: two_places.there.checkpoint_step() >= 5, "a checkpoint")
    fetcher.send(signal.SIGKILL)
    two_places.here.finish(fetcher)
    assert two_places.there.checkpoint_step() < undisturbed.steps - 20
    two_places.there.wait_in(trainer, lambda: "the fetcher is gone" in trainer.output(), "the fetcher's loss")
    again = two_places.start_fetcher(address)
    two_places.there.release()
    two_places.assert_the_same_end([trainer, again, decoder], undisturbed)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://127.0.0.1:*"])
def test_a_fetcher_without_keys_does_not_listen(processes: Processes, command: list[str], address: str) -> None:
    *inputs_and_settings, _, _ = command
    exit_code, output = processes.run("fetcher", *inputs_and_settings, *settings(f"transport.listen={address}"))
    assert exit_code == 2
    assert "a trainer over tcp needs keys: `icestream keys keys`" in output.splitlines()[-1]
    assert "Traceback" not in output


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:5570", "tcp://127.0.0.1:5570"])
def test_a_trainer_without_keys_does_not_connect(processes: Processes, address: str) -> None:
    exit_code, output = processes.run("trainer", "--connect", address)
    assert exit_code == 2
    assert "a trainer over tcp needs keys: copy `for-trainer`" in output.splitlines()[-1]
    assert "Traceback" not in output
