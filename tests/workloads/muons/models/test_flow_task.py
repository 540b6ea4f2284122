"""The training step of the flow, and what it learns. What it shares with the WGAN: test_muon_tasks.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from host_syncs import no_host_sync
from pydantic import ValidationError
from toy_events import make_microbatch, split, toy_batch
from toy_tasks import CPU, changed, make_flow, weights

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.flow.config import FlowConfig
from workloads.muons.models.flow.task import FlowTask


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


def muon_means(task: FlowTask, num_events: int = 2000) -> tuple[torch.Tensor, torch.Tensor]:
    """Of lg E and lg r: real toy events, and generated ones of the same primaries."""
    (real,) = toy_batch(num_events, seed=99).microbatches
    features = task.networks.standardise.features
    generated = task.generate(real.event_columns["primary"])
    return features(real.particle_columns["muons"]), features(generated.muons_P3)


def test_a_step_changes_both_networks_and_returns_finite_metrics() -> None:
    task = make_flow()
    networks = (task.networks.count_head, task.networks.velocity, task.networks.averaged.average)
    before = [weights(network) for network in networks]

    metrics = task.step(toy_batch())

    assert metrics.keys() == {"flow_loss", "m_loss", "flow_grad_norm", "count_grad_norm", "skipped_updates"}
    assert all(value.isfinite() and value.dim() == 0 for value in metrics.values())
    assert metrics["flow_grad_norm"] > 0
    assert metrics["skipped_updates"] == 0
    assert all(changed(old, network) for old, network in zip(before, networks, strict=True))


@pytest.mark.parametrize("muon_weight", [0.0, 0.5, 1.0])
def test_before_the_first_step_the_loss_is_that_of_no_velocity_at_all(muon_weight: float) -> None:
    """Noise and standardised muons have a spread of 1 each, so their difference has 2."""
    task = make_flow(pair_by_energy=False, muon_weight=muon_weight)
    assert float(task.step(toy_batch(2000))["flow_loss"]) == pytest.approx(2, abs=0.25)


def test_noise_that_is_paired_by_energy_has_less_of_a_way_to_go() -> None:
    batch = toy_batch(256, counts=[5] * 256)
    apart, paired = (make_flow(pair_by_energy=pair).step(batch)["flow_loss"] for pair in (False, True))
    assert paired < 0.8 * apart


@pytest.mark.parametrize("muon_weight", [0.0, 0.5, 1.0])
def test_chunks_and_threads_make_the_step_of_the_whole_batch(muon_weight: float) -> None:
    settings: dict[str, Any] = {"muon_weight": muon_weight}
    whole = make_flow(**settings)
    contexts = [StepContext(CPU, 1, threads=threads) for threads in (1, 3)]
    others = [make_flow(context, **settings, chunk_particles=10) for context in contexts]
    batch = split(toy_batch(30), [5, 0, 14, 11])

    expected = whole.step(batch)

    for task in others:
        found = task.step(batch)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_gradients_of_microbatches_add_up_to_those_of_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = toy_batch(30)
    (microbatch,) = batch.microbatches
    whole, parts = make_flow(), make_flow()
    for task in (whole, parts):
        task.step(toy_batch(seed=1))
    drawn = whole.networks.with_noise(microbatch, torch.Generator().manual_seed(3))
    cut = [drawn.part(0, 5), drawn.part(5, 19), drawn.part(19, 30)]
    # The parts bring the noise of the whole along.
    monkeypatch.setattr(whole.networks, "with_noise", lambda source, random: drawn)
    monkeypatch.setattr(parts.networks, "with_noise", lambda source, random: source)

    expected, found = whole.step(batch), parts.step(Batch(tuple(cut)))

    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_empty_events_change_nothing_for_the_flow() -> None:
    (full,) = toy_batch(4, counts=[2, 1, 3, 2]).microbatches
    primary = full.event_columns["primary"]
    muons = full.particle_columns["muons"]
    without, with_empty = make_flow(), make_flow()
    for task in (without, with_empty):
        task.step(Batch((full,)))
    drawn = without.networks.with_noise(full, torch.Generator().manual_seed(3))
    time_E, noise_PF = drawn.event_columns["flow_time"], drawn.particle_columns["flow_noise"]
    padded = make_microbatch(torch.cat([primary, primary[:2]]), torch.tensor([2, 1, 3, 2, 0, 0]), muons)
    padded.event_columns["flow_time"] = torch.cat([time_E, torch.tensor([0.1, 0.9])])
    padded.particle_columns["flow_noise"] = noise_PF

    assert without.networks.total_weight(drawn) == with_empty.networks.total_weight(padded)
    torch.testing.assert_close(without.networks.flow_loss(drawn), with_empty.networks.flow_loss(padded))


def test_of_a_large_event_a_sample_is_trained_on_and_its_number_of_muons_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = [*range(8)] * 4
    whole, thin = make_flow(), make_flow(max_muons=5)
    seen = []
    flow_loss = thin.networks.flow_loss
    monkeypatch.setattr(thin.networks, "flow_loss", lambda source: (seen.append(source), flow_loss(source))[1])

    expected, found = (task.step(toy_batch(counts=counts)) for task in (whole, thin))

    (source,) = seen
    segments = thin.networks.events(source).segments
    assert segments.counts_E.tolist() == [min(count, 5) for count in counts]
    assert segments.sizes_E.tolist() == counts
    assert found["m_loss"] == expected["m_loss"]
    assert float(found["flow_loss"]) == pytest.approx(float(expected["flow_loss"]), rel=0.3)


def test_out_of_memory_the_batch_is_halved_and_the_update_is_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, short = make_flow(), make_flow()
    batch = toy_batch(30)
    flow_loss, tried = short.networks.flow_loss, []

    def with_little_memory(source: Any) -> torch.Tensor:
        tried.append(source.num_particles)
        if len(tried) == 1:
            raise torch.OutOfMemoryError
        return flow_loss(source)

    monkeypatch.setattr(short.networks, "flow_loss", with_little_memory)
    expected, found = plain.step(batch), short.step(batch)

    assert tried[0] == sum(tried[1:])
    assert len(tried) == 3
    assert "the batch is split in two" in caplog.text
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_no_step_makes_the_host_wait_once_the_standardisation_is_fitted() -> None:
    task = make_flow(gradient_clip=1.0, schedule_steps=5)
    task.step(toy_batch())
    for batch in (split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22]), toy_batch(seed=3)):
        with no_host_sync():
            task.step(batch)


def test_it_learns_the_toy_events() -> None:
    """Energies that rise with the primary's, radii that don't: both means, both spreads, and what an event shares."""
    task = make_flow(schedule_steps=300, flow_lr=5e-3)
    losses = [float(task.step(toy_batch(64, seed=seed))["flow_loss"]) for seed in range(300)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
    real, generated = muon_means(task)
    torch.testing.assert_close(generated.mean(0), real.mean(0), atol=0.1, rtol=0)
    torch.testing.assert_close(generated.std(0), real.std(0), atol=0.1, rtol=0)


def test_it_learns_what_all_muons_of_an_event_share() -> None:
    """An offset of lg r, drawn once an event, is in no condition: only the pooled context can carry it."""

    def batch(num_events: int, seed: int) -> Batch:
        (plain,) = toy_batch(num_events, seed=seed, counts=[10] * num_events).microbatches
        random = torch.Generator().manual_seed(seed)
        factor_E = 10 ** (0.5 * torch.randn(num_events, generator=random))
        plain.particle_columns["muons"][:, 1:] *= factor_E.repeat_interleave(10).unsqueeze(1)
        return Batch((plain,))

    def spread_of_means(muons: torch.Tensor) -> float:
        lg_r_P = (torch.hypot(muons[:, 1], muons[:, 2]) + 0.1).log10()
        return float(lg_r_P.reshape(-1, 10).mean(1).std())

    task = make_flow(schedule_steps=400, flow_lr=5e-3)
    for seed in range(400):
        task.step(batch(48, seed))
    (held_out,) = batch(600, 1000).microbatches
    primary_E4, counts_E = held_out.event_columns["primary"], held_out.offsets_E1.diff()
    muons = task.sampler().draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(5))

    # Independent muons with the right spread of lg r, 0.58, would have 0.58 / sqrt(10) = 0.18.
    real = spread_of_means(held_out.particle_columns["muons"])
    assert spread_of_means(muons) == pytest.approx(real, rel=0.2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"betas": (0.9, 1.0)}, "both must be at least 0 and below 1"),
        ({"schedule": "constant", "schedule_steps": 5}, "has no effect with schedule = 'constant'"),
        ({"muon_weight": 2.0}, "less than or equal to 1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        FlowConfig.model_validate(settings)
