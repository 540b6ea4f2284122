"""Count head, generator, critic, and the settings that shape them."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from workloads.base.segments import Segments
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.wgan.config import NetworkConfig, WganConfig
from workloads.muons.models.wgan.model import Critic, Generator

NUM_FEATURES = 2


def ragged(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def inputs(counts: list[int]) -> tuple[Tensor, Tensor, Segments]:
    """Random features (P, 2), conditions (E, 5) and their segments."""
    generator = torch.Generator().manual_seed(4)
    return (
        torch.randn(sum(counts), NUM_FEATURES, generator=generator),
        torch.randn(len(counts), 5, generator=generator),
        ragged(counts),
    )


@pytest.fixture
def critic() -> Critic:
    torch.manual_seed(5)
    return Critic(NUM_FEATURES, NetworkConfig(hidden=32))


def test_permuting_the_muons_of_an_event_does_not_change_its_score(critic: Critic) -> None:
    features, conditions, segments = inputs([3, 0, 5])
    permutation = torch.tensor([2, 0, 1, 7, 3, 5, 4, 6])

    torch.testing.assert_close(
        critic(features[permutation], conditions, segments), critic(features, conditions, segments)
    )


def test_exchanging_muons_between_events_changes_the_scores(critic: Critic) -> None:
    features, conditions, segments = inputs([3, 0, 5])
    exchanged = features.clone()
    exchanged[[2, 3]] = features[[3, 2]]

    difference = critic(exchanged, conditions, segments) - critic(features, conditions, segments)

    assert (difference[[0, 2]].abs() > 1e-5).all()
    assert difference[1] == 0


def test_duplicating_every_muon_changes_the_score(critic: Critic) -> None:
    features, conditions, segments = inputs([3, 1, 5])
    twice = critic(features.repeat_interleave(2, 0), conditions, ragged([6, 2, 10]))

    assert ((twice - critic(features, conditions, segments)).abs() > 1e-4).all()


def test_a_score_depends_on_the_conditions_through_the_projection(critic: Critic) -> None:
    features, conditions, segments = inputs([2, 2])
    before = critic(features, conditions, segments)

    torch.nn.init.zeros_(critic.projection.weight)

    assert ((critic(features, conditions, segments) - before).abs() > 1e-4).all()


def test_scores_saturate_at_the_limit_and_raw_scores_do_not(critic: Critic) -> None:
    features, conditions, segments = inputs([2, 3])
    with torch.no_grad():
        critic.output.bias.fill_(1000.0)

    assert critic(features, conditions, segments).max() <= 100
    assert critic.raw_scores(features, conditions, segments).min() > 900
    small = torch.tensor([-1.0, 0.0, 2.0])
    torch.testing.assert_close(critic.saturate(small), small, rtol=1e-3, atol=0)


def test_options_of_the_critic_can_be_switched_off() -> None:
    plain = Critic(NUM_FEATURES, NetworkConfig(hidden=8, layer_norm=False, xavier_gain=0, score_limit=0))
    scores = torch.tensor([1e4, -1e4])

    assert torch.equal(plain.saturate(scores), scores)
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in plain.modules())
    assert plain(*inputs([2, 1])).shape == (2,)


def test_muons_of_one_event_share_its_noise_and_differ_by_their_own() -> None:
    generator = Generator(NUM_FEATURES, NetworkConfig(hidden=16))
    segments = ragged([2, 2])
    conditions = torch.zeros(2, 5)
    z_event, z_muon = generator.noise(segments)
    same = generator(conditions, segments, (z_event, torch.zeros_like(z_muon)))

    assert same.shape == (4, NUM_FEATURES)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(same[1], same[2])
    different = generator(conditions, segments, (z_event, z_muon))
    assert not torch.equal(different[0], different[1])


def test_networks_accept_events_without_any_muon(critic: Critic) -> None:
    features, conditions, segments = inputs([0, 0, 0])

    generator = Generator(NUM_FEATURES, NetworkConfig(hidden=16))
    assert generator(conditions, segments, generator.noise(segments)).shape == (0, NUM_FEATURES)
    assert critic(features, conditions, segments).isfinite().all()


def test_sampled_counts_have_mean_and_variance_of_the_mixture() -> None:
    head = MixtureCountHead(NetworkConfig(count_components=1))
    torch.nn.init.zeros_(head.output.weight)
    mean, shape = 7.0, 2.0
    with torch.no_grad():
        head.output.bias.copy_(torch.tensor([0.0, mean, shape]).log().nan_to_num(neginf=0.0))
    torch.manual_seed(6)

    counts = head.sample(torch.zeros(20_000, 5)).double()

    assert counts.mean() == pytest.approx(mean, rel=0.03)
    assert counts.var() == pytest.approx(mean + mean**2 / shape, rel=0.06)


@pytest.mark.parametrize("pooling", ["mean+max", "max", "mean", "sum"])
@pytest.mark.parametrize("normalisation", ["layer", "spectral", "none"])
@pytest.mark.parametrize("score_limit", [100.0, 0.5, 0.0])
def test_the_slope_and_its_gradients_are_those_of_autograd(
    pooling: str, normalisation: str, score_limit: float
) -> None:
    torch.manual_seed(8)
    config = NetworkConfig.model_validate(
        {
            "hidden": 16,
            "pooling": pooling,
            "layer_norm": normalisation == "layer",
            "spectral_norm": normalisation == "spectral",
            "score_limit": score_limit,
        }
    )
    critic = Critic(NUM_FEATURES, config).eval()  # in training, spectral norms move with each use
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    features, conditions, segments = inputs([3, 0, 1, 5])
    features.requires_grad_(True)

    (expected,) = torch.autograd.grad(critic(features, conditions, segments).sum(), features, create_graph=True)
    found = critic.slope(features, conditions, segments)

    torch.testing.assert_close(found, expected)
    direction = torch.randn(expected.shape)
    weights = [features, *critic.parameters()]
    gradients = [
        torch.autograd.grad((slope * direction).sum(), weights, materialize_grads=True, retain_graph=True)
        for slope in (expected, found)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_spectral_norm_bounds_the_singular_values_of_the_critic() -> None:
    critic = Critic(NUM_FEATURES, NetworkConfig(hidden=16, layer_norm=False, spectral_norm=True, xavier_gain=3.0))
    features, conditions, segments = inputs([3, 5])
    for _ in range(30):
        critic(features, conditions, segments)

    for layer in (critic.muon_input, critic.muon_hidden, critic.event_input, critic.event_hidden):
        assert torch.linalg.matrix_norm(layer.linear.weight, 2).item() == pytest.approx(1, abs=0.02)


def test_a_wild_primary_gives_a_bounded_mean_count() -> None:
    head = MixtureCountHead(NetworkConfig())

    mixture = head(1e6 * torch.randn(100, 5))

    assert mixture.log_means_EK.abs().max() <= 12
    assert mixture.log_shapes_EK.min() >= -4
    assert mixture.log_shapes_EK.max() <= 8


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"schedule": "constant", "schedule_steps": 10}, ["schedule_steps = 10", "'constant'", "set "]),
        ({"network": {"spectral_norm": True}}, ["spectral_norm", "layer_norm = false"]),
        ({"critic_steps": 20, "adaptive": {"enabled": True}}, ["max_critic_steps = 10", "critic_steps = 20"]),
        ({"generator_betas": (0.0, 1.0)}, ["generator_betas = (0.0, 1.0)", "below 1"]),
        ({"network": {"z_local": 1}}, ["local_tails = 2", "z_local = 1"]),
        ({"criticsteps": 5}, ["criticsteps", "not permitted"]),
    ],
)
def test_settings_that_cancel_each_other_are_refused_with_the_fix(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        WganConfig.model_validate(values)

    for word in words:
        assert word in str(refused.value)


def test_slow_sgd_is_warned_about_and_the_default_is_not() -> None:
    assert WganConfig().warnings() == []
    assert WganConfig(optimiser="sgd", generator_lr=1e-2, critic_lr=1e-2).warnings() == []

    warnings = WganConfig(optimiser="sgd", generator_lr=2e-4, critic_lr=4e-4).warnings()

    assert [line.split(" = ")[0] for line in warnings] == ["generator_lr", "critic_lr"]
    assert "1e-2" in warnings[0]


def test_every_setting_has_a_description_and_survives_a_dump() -> None:
    for model in (WganConfig, NetworkConfig):
        assert all(field.description for field in model.model_fields.values())
    config = WganConfig(gp_every=2, schedule_steps=10)
    assert WganConfig.model_validate(config.model_dump()) == config
