"""Promise 1: what is trained, and in which order, does not depend on how many work on it or how fast."""

from __future__ import annotations

import pytest
from runs import Processes, settings
from showers import EPOCHS, Scene

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("decoders", "assignments"),
    [
        (1, ()),
        (3, ("stream.slots=8", "decoder.credit=1", "trainer.prefetch_units=5")),
        (3, ("stream.slots=1",)),
        (2, ("fetcher.transfers=1", "fetcher.blocks_ahead=1", "transport.sockets=folder")),
    ],
    ids=["1 decoder", "3 decoders, many slots", "3 decoders, 1 slot", "1 transfer"],
)
def test_the_audit_and_the_weights_do_not_depend_on_decoders_slots_or_threads(
    processes: Processes, scene: Scene, decoders: int, assignments: tuple[str, ...]
) -> None:
    processes.train(*scene.command, *settings(*assignments), "--decoders", str(decoders))
    scene.undisturbed.assert_same(processes)
    assert not list((processes.run_dir / "sockets").glob("*"))


def test_the_deterministic_mode_trains_the_same_on_a_cpu(processes: Processes, scene: Scene) -> None:
    processes.train(*scene.command, *settings("trainer.deterministic=true"))
    scene.undisturbed.assert_same(processes)


def test_another_seed_gives_another_order_of_the_same_events(processes: Processes, scene: Scene) -> None:
    summary = processes.train(*scene.command, "--seed", "1")
    # Two events may meet in a microbatch of two by chance.
    common = set(processes.audit()) & set(scene.undisturbed.audit)
    assert len(common) < len(scene.undisturbed.audit) / 20
    assert summary.events == scene.undisturbed.summary.events


def test_the_undisturbed_audit_covers_every_event_of_every_epoch(scene: Scene) -> None:
    scene.undisturbed.summary.assert_read(EPOCHS * scene.events)
    assert scene.undisturbed.summary["particles_trained"] == EPOCHS * scene.particles
    assert len(set(scene.undisturbed.audit)) == len(scene.undisturbed.audit)
    assert scene.undisturbed.steps > 50
