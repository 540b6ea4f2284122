"""What depends on the seed, and what does not; how much is held at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from trained import make_sampler, write_checkpoint

from common.errors import BadInputError
from services.config.root import Config
from workloads.muons import generation as stream
from workloads.muons.generation import CountRule, MuonBundles, generate_events, load_trained
from workloads.muons.models.config import MuonNetworkConfig, WganConfig
from workloads.muons.primaries import Primaries, at_depths, simulated_primaries

SAMPLED = CountRule("sampled")


class Toy:
    """A sampler: counts follow the energy, muons are noise. Knows what it was asked for."""

    device = torch.device("cpu")
    num_shared = 1

    def __init__(self) -> None:
        self.most_muons = 0
        self.depths: list[float] = []
        self.shared: list[float] = []

    def draw_counts(self, primary_E4: Tensor, random: torch.Generator) -> Tensor:
        return torch.poisson(primary_E4[:, 0], generator=random).long()

    def draw_muons(
        self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator, shared_EZ: Tensor | None
    ) -> Tensor:
        self.most_muons = max(self.most_muons, int(counts_E.sum()))
        self.depths += primary_E4[:, 3].tolist()
        self.shared += [] if shared_EZ is None else shared_EZ[:, 0].tolist()
        return torch.rand(int(counts_E.sum()), 3, generator=random)


def rows(energies: list[float], counts: list[int] | None = None) -> Primaries:
    number = np.arange(len(energies), dtype=np.uint64)
    primary_E4 = np.stack([np.array(energies), *np.full((3, len(energies)), 1.0)], 1).astype(np.float32)
    return Primaries(np.stack([number, number], 1), primary_E4, None if counts is None else np.array(counts))


def everything(found: list[MuonBundles]) -> tuple[list[int], bytes]:
    counts = [int(count) for one in found for count in one.counts_E]
    return counts, b"".join(one.muons.tobytes() for one in found)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_EVENTS", 10)


def test_same_seed_same_events_however_the_rows_are_cut() -> None:
    primaries = rows([float(i % 7) for i in range(47)])
    whole = everything(list(generate_events([primaries], Toy(), SAMPLED, "vertical", seed=3)))
    for size in (1, 3, 10, 46):
        batches = [primaries.rows(first, min(first + size, 47)) for first in range(0, 47, size)]
        assert everything(list(generate_events(batches, Toy(), SAMPLED, "vertical", seed=3))) == whole
    assert everything(list(generate_events([primaries], Toy(), SAMPLED, "vertical", seed=4))) != whole


def test_muons_held_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_MUONS", 100)
    toy = Toy()
    counts = [60] * 9 + [1000]
    found = list(generate_events([rows([1.0] * 10, counts)], toy, CountRule("column"), "vertical", seed=0))
    assert toy.most_muons == 1000
    assert [len(one.muons) for one in found] == [60] * 9 + [1000]
    assert [one.primaries.ids_E2[0, 0] for one in found] == list(range(10))


def test_rows_of_a_shower_share_its_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the pieces and chunks; a row that is there again is another event, and events alone share nothing."""
    monkeypatch.setattr(stream, "MAX_MUONS", 1)
    events, toy = rows([1.0] * 16), Toy()
    first, second = (list(at_depths([events.rows(*some)], [1.0, 2.0, 3.0])) for some in ((0, 2), (2, 4)))
    batches = [*first, events.rows(0, 1), events.rows(0, 1), *second, events.rows(4, 16)]
    list(generate_events(batches, toy, CountRule("constant", constant=1), "vertical", seed=0))
    assert len(toy.shared) == 18
    assert [toy.shared.index(one) for one in toy.shared] == [0] * 3 + [3] * 3 + [6, 7] + [8] * 3 + [11] * 3 + [
        *range(14, 18)
    ]


def test_muons_of_events_with_the_same_shared_numbers_are_alike() -> None:
    sampler = make_sampler(WganConfig())
    shared_EZ = torch.randn(2, sampler.num_shared, generator=torch.Generator().manual_seed(3))[[0, 0, 1, 0]]
    primary_E4, counts_E = torch.tensor([[1e6, 0.5, 4.0, 1500.0]]).repeat(4, 1), torch.tensor([5000, 0, 5000, 5000])
    muons_P3 = sampler.draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(1), shared_EZ)
    one, other, same = muons_P3[:, 1:].norm(dim=1).log().view(3, 5000).mean(1).tolist()
    assert abs(one - same) < 0.1 * abs(one - other)


def test_counts_are_those_of_the_rule_and_capped() -> None:
    primaries = rows([1.0] * 4, [3, 7, 0, 8])
    of_column = list(generate_events([primaries], Toy(), CountRule("column", max_count=6), "vertical", seed=0))
    assert [count for one in of_column for count in one.counts_E] == [3, 6, 0, 6]
    assert sum(one.num_capped for one in of_column) == 2
    constant = list(generate_events([primaries], Toy(), CountRule("constant", constant=5), "vertical", seed=0))
    assert [count for one in constant for count in one.counts_E] == [5, 5, 5, 5]
    assert sum(one.num_capped for one in constant) == 0


def test_the_model_gets_vertical_depths_and_the_rows_keep_theirs() -> None:
    primaries = list(simulated_primaries("bench", 10, "slant", seed=1))
    same = list(simulated_primaries("bench", 10, "vertical", seed=1))
    toy = Toy()
    found = list(generate_events(primaries, toy, CountRule("constant", constant=1), "slant", seed=0))
    assert toy.depths == pytest.approx(same[0].primary_E4[:, 3].tolist(), rel=1e-4)
    assert found[0].primaries.primary_E4.tolist() == primaries[0].primary_E4.tolist()
    assert (primaries[0].primary_E4[:, 3] > same[0].primary_E4[:, 3]).any()


def test_fewer_simulated_primaries_are_the_first_of_more() -> None:
    few = Primaries.joined(list(simulated_primaries("h3a", 100, "vertical", seed=1)))
    many = Primaries.joined(list(simulated_primaries("h3a", 70_000, "vertical", seed=1)))
    assert len(many) == 70_000
    assert many.rows(0, 100).primary_E4.tolist() == few.primary_E4.tolist()
    assert many.ids_E2[-1].tolist() == [0, 69_999]


WGAN = WganConfig(network=MuonNetworkConfig(hidden=8))


def config_of(**trainer: object) -> Config:
    return Config.model_validate({"input": ["data"], "trainer": trainer})


def test_the_best_checkpoint_of_a_run_comes_before_the_newest(tmp_path: Path) -> None:
    config = config_of(wgan=WGAN.model_dump())
    sampler = make_sampler(WGAN)
    newest = write_checkpoint(tmp_path / "checkpoints/step-000000009.pt", config, sampler)
    write_checkpoint(tmp_path / "checkpoints/step-000000007.pt", config, sampler)
    assert load_trained(tmp_path, torch.device("cpu")).run.path == newest
    best = write_checkpoint(tmp_path / "checkpoints/best.pt", config, sampler)
    trained = load_trained(tmp_path, torch.device("cpu"))
    assert trained.run.path == best
    primary_E4, counts_E = torch.tensor([[1e6, 0.5, 4.0, 1500.0]]), torch.tensor([20])
    muons = [
        one.draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(1)) for one in (trained.generator, sampler)
    ]
    assert torch.equal(*muons)


@pytest.mark.parametrize(
    ("settings", "without", "told"),
    [
        (
            {"betas": [0.0, 0.9], "gp_max_muons": 64},
            "",
            r"this version has no settings trainer\.wgan\.betas, trainer\.wgan\.gp_max_muons",
        ),
        ({}, "line.weight", r"its networks are not those of this version: .*line\.weight"),
    ],
)
def test_a_checkpoint_of_an_earlier_version_is_told_in_one_line_with_the_remedy(
    tmp_path: Path, settings: dict[str, object], without: str, told: str
) -> None:
    """Of commit 9843d43, whose count head had no line and no running mean."""
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=WGAN.model_dump()), make_sampler(WGAN))
    state = torch.load(path, weights_only=True)
    config, networks = json.loads(state["config"]), state["task"]["networks"]
    config["trainer"]["wgan"] |= settings
    networks.pop(without, None)
    networks.get("count_head_average", {}).pop(without, None)
    torch.save(state | {"config": json.dumps(config)}, path)
    remedy = "use the version of icestream that wrote it, or train again"
    message = rf"step-1\.pt: its model can't be built \({told}.*\): {remedy}"
    with pytest.raises(BadInputError, match=message) as refused:
        load_trained(path, torch.device("cpu"))
    assert "\n" not in str(refused.value)
    assert "pydantic" not in str(refused.value)


@pytest.mark.parametrize(
    ("workload", "model", "told"),
    [
        ("muons", "flow", r": its model can't be built \('flow' is no model of .*wgan.*: use the version"),
        ("direction", "sets", " is a run of the workload direction: name one of the workload muons$"),
    ],
)
def test_a_checkpoint_of_a_model_that_is_not_there_names_it_and_the_remedy(
    tmp_path: Path, workload: str, model: str, told: str
) -> None:
    path = write_checkpoint(tmp_path / "step-1.pt", config_of(wgan=WGAN.model_dump()), make_sampler(WGAN))
    state = torch.load(path, weights_only=True)
    config = json.loads(state["config"]) | {"workload": workload, "trainer": {"model": model, model: {}}}
    torch.save(state | {"config": json.dumps(config)}, path)
    with pytest.raises(BadInputError, match=rf"step-1\.pt{told}"):
        load_trained(path, torch.device("cpu"))
