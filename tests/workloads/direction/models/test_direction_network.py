"""What the direction networks share: the detector, packed input, chosen sensors, loss and angle."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from decimal import MAX_EMAX, Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from direction_events import DETECTOR, GEOMETRY, POSITION_S3, direction_microbatch, event_input, segments_of
from torch import Tensor
from torch.autograd import gradcheck

from common.errors import BadInputError
from workloads.base.batch import Microbatch
from workloads.direction import light
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, write_geometry
from workloads.direction.models.network import (
    LN_KAPPA,
    Detector,
    angle_deg,
    eigenvalues,
    sensor_set,
    unit_vectors,
    vmf_loss,
)


def data_of(geometry: Geometry, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "events-0.parquet").touch()
    write_geometry(folder / GEOMETRY_FILE, geometry)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_of(GEOMETRY, tmp_path / "data_1")


def found(*inputs: str, configured: str = "") -> Detector:
    return Detector.found(configured, inputs, "trainer.sets")


@pytest.mark.parametrize(
    "form",
    ["{}", "{}/events-0.parquet", "{}/../**/*.parquet", "{}/../data_{{0..1}}", "file://{}", "@{}/list"],
)
def test_it_lies_beside_the_inputs_however_they_are_named(folder: Path, form: str) -> None:
    (folder / "list").write_text(f"{folder}/events-0.parquet\n")
    assert torch.equal(found(form.format(folder)).position_S3, POSITION_S3)


def test_the_setting_wins(folder: Path, tmp_path: Path) -> None:
    write_geometry(tmp_path / "other.csv", Geometry(GEOMETRY.position_S3 + 1))
    assert torch.equal(found(str(folder), configured=str(tmp_path / "other.csv")).position_S3, POSITION_S3 + 1)


@pytest.mark.parametrize("inputs", [(), ("pelican://host/data",), ("missing",)])
def test_without_any_the_error_tells_what_to_do(inputs: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError, match=r"no sensor_geometry\.csv .* or set trainer\.sets\.geometry to its path"):
        found(*inputs)


def test_inputs_of_two_detectors_are_refused(folder: Path, tmp_path: Path) -> None:
    other = data_of(GEOMETRY, tmp_path / "other")
    assert torch.equal(found(str(folder), str(other)).position_S3, POSITION_S3)
    data_of(Geometry(GEOMETRY.position_S3 * 2), other)
    with pytest.raises(BadInputError, match="train on the files of one detector"):
        found(str(folder), str(other))


def test_pulses_belong_to_sensors_and_these_to_events() -> None:
    microbatch = direction_microbatch(counts=[6, 0, 1, 20])
    events = event_input(microbatch)

    sensor_P = microbatch.particle_columns["sensor"][:, 0].numpy()
    expected = [np.unique(part, return_counts=True) for part in np.split(sensor_P, [6, 6, 7])]
    pulses = segments_of(*(int(num) for _, nums in expected for num in nums))
    assert events.sensors.counts_E.tolist() == [len(ids) for ids, _ in expected]
    assert torch.equal(events.position_T3, DETECTOR.seen_S3[np.concatenate([ids for ids, _ in expected])])
    for name in ("counts_E", "event_P", "starts_E"):
        assert torch.equal(getattr(events.pulses, name), getattr(pulses, name)), name
    assert events.num_events == 4
    assert events.num_without_fits == 0


def test_a_sensor_that_the_geometry_lacks_is_named() -> None:
    microbatch = direction_microbatch(counts=[9])
    microbatch.particle_columns["sensor"][-1] = 225
    with pytest.raises(BadInputError, match="a pulse is of sensor 225, and the sensor geometry has 225 sensors"):
        event_input(microbatch)


def test_a_turn_is_that_of_a_microbatch_with_turned_positions() -> None:
    """Everything with a direction or a place turns, each event by its own angle: a turned detector is read alike."""
    microbatch, angle = direction_microbatch(counts=[9, 0, 17]), 0.7
    matrix = torch.tensor(
        [[math.cos(angle), math.sin(angle), 0.0], [math.sin(angle), -math.cos(angle), 0.0], [0.0, 0.0, 1.0]]
    )  # y -> -y, then the rotation
    columns = dict(microbatch.event_columns)
    columns["source_direction"] = columns["source_direction"] @ matrix.T
    fits = dict(zip(CLASSICAL_FITS, columns["classical_fits"].unbind(1), strict=True))
    for first in (name for name in CLASSICAL_FITS if re.search("_x(_m)?$", name)):
        names = [re.sub("_x(_m)?$", rf"_{axis}\1", first) for axis in "xyz"]
        turned = torch.stack([fits[name] for name in names], 1) @ matrix.T
        fits |= dict(zip(names, turned.unbind(1), strict=True))
    columns["classical_fits"] = torch.stack([fits[name] for name in CLASSICAL_FITS], 1)
    turned_detector = Detector(Geometry((POSITION_S3 @ matrix.T).numpy()))
    expected = event_input(replace(microbatch, event_columns=columns), turned_detector)
    unturned = event_input(microbatch)

    found = unturned.turned(torch.tensor([[0.0, 1.0], [angle, -1.0], [angle, -1.0]]))

    first_T, first_E = int(unturned.sensors.counts_E[0]), 1
    for name, end in (("position_T3", first_T), ("source_direction_E3", first_E), ("fits_EF", first_E)):
        wanted = torch.cat([getattr(unturned, name)[:end], getattr(expected, name)[end:]])
        torch.testing.assert_close(getattr(found, name), wanted, atol=1e-4, rtol=1e-6)
    assert torch.equal(found.time_P, unturned.time_P)


def chosen_and_summary(microbatch: Microbatch, event: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the chosen sensors of an event, sorted, and its summary, in float64."""
    part = microbatch.part(event, event + 1)
    time, charge = part.particle_columns["pulses"].double().numpy().T
    sensor, clean = part.particle_columns["sensor"][:, 0].numpy(), ~part.particle_columns["auxiliary"][:, 0].numpy()
    time = (time - np.sort(time[clean])[(clean.sum() - 1) // 2]) * DETECTOR.scale
    rows = []
    for one in np.unique(sensor):
        of = sensor == one
        hit = (of & clean).any()
        first = time[of & clean].min() if hit else time[of].min()
        after = np.array([np.sort(time[of])[(of.sum() - 1) // 2], time[of].max(), time[of].mean()]) - first
        rows.append(
            [*DETECTOR.seen_S3[one].numpy(), first, np.log10(charge[of].sum()), not hit, *after, np.log(of.sum())]
        )
    table = np.array(rows, float)
    aux = table[:, 5] > 0
    place = np.c_[table[:, :3] / 150, table[:, 3] / 1000] / DETECTOR.scale
    apart = np.linalg.norm(place[:, None] - place[None, ~aux], axis=2).min(1)
    score = np.where(aux, apart, -1 - np.log1p(10 ** table[:, 4]))
    kept = np.argsort(score, kind="stable")[:most]
    clean_rows = table[~aux]
    spread = np.linalg.eigvalsh(np.cov(clean_rows[:, :3].T, bias=True))
    total = 10 ** table[:, 4]
    summary = [
        *(np.log(len(table)), np.log(len(clean_rows)), np.log(charge.sum()), *(np.log(spread.clip(0) + 1) / 4 - 2)),
        *(clean_rows[:, 3].std() / 500, total.max() / total.sum()),
    ]
    return table[np.sort(kept)], np.array(summary)


@pytest.mark.parametrize(("most", "pairs_at_once"), [(96, 1), (7, 50)])
def test_all_events_at_once_are_each_event_alone(
    monkeypatch: pytest.MonkeyPatch, most: int, pairs_at_once: int
) -> None:
    """Also where distances are computed in blocks: an event of 178,000 pulses has millions of pairs."""
    monkeypatch.setattr(light, "_PAIRS_AT_ONCE", pairs_at_once)
    nearest, pairs = light._nearest, []
    monkeypatch.setattr(light, "_nearest", lambda *arguments: (pairs.append(arguments[-1]), nearest(*arguments))[1])
    microbatch = direction_microbatch(40, seed=3)
    microbatch.particle_columns["pulses"][:, 0] *= 5  # far apart in time
    found = sensor_set(event_input(microbatch), most)

    columns = (
        *(found.position_T3, found.time_T1, found.log10_charge_T1, found.auxiliary_T1),
        *(found.median_T1, found.last_T1, found.mean_T1, found.ln_pulses_T1),
    )
    ends = found.segments.counts_E.cumsum(0).tolist()
    tables = np.split(torch.cat(columns, 1).numpy(), ends[:-1])
    cut = 0
    for event, table in enumerate(tables):
        expected, summary = chosen_and_summary(microbatch, event, most)
        np.testing.assert_allclose(table, expected, rtol=1e-4, atol=2e-3)
        np.testing.assert_allclose(found.summary_E8[event].numpy(), summary, rtol=1e-4, atol=1e-3)
        cut += len(expected) < round(np.exp(summary[0]))
    assert (cut > 3) == (most == 7)
    assert len(pairs) > 10
    assert max(pairs) <= 50
    most_clean = max(int(num) for num in found.segments.counts_E)
    assert max(pairs) <= max(pairs_at_once, most_clean)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_eigenvalues_are_those_of_lapack(rank: int) -> None:
    vectors_ENR = torch.randn(200, 3, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 300
    matrices = vectors_ENR @ vectors_ENR.mT
    diagonal = torch.diagonal(matrices, dim1=1, dim2=2)
    beside = torch.stack([matrices[:, 0, 1], matrices[:, 1, 2], matrices[:, 2, 0]], 1)
    expected = torch.linalg.eigvalsh(matrices).float() if rank else torch.zeros(200, 3)
    torch.testing.assert_close(eigenvalues(diagonal, beside), expected, rtol=1e-4, atol=1e-2)


KAPPAS = [1e-6, 1e-3, 0.1, 0.4999, 0.5001, 1.0, 3.0, 10.0, 88.0, 100.0, 800.0, 1e4, 1e6, math.exp(LN_KAPPA[1])]
ANGLES = [0.0, 1e-4, 0.01, 0.3, math.pi / 2, 3.0, math.pi]


def pair(kappa: float, angle: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """p of the given κ at an angle from a true direction that isn't an axis. (1, 3) each."""
    true = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64) / 3
    across = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64) / math.sqrt(5)
    p = kappa * (math.cos(angle) * true + math.sin(angle) * across)
    return p[None].to(dtype), true[None].to(dtype)


def reference(kappa: float, angle: float) -> float:
    """-ln[κ exp(κ cos α) / (4π sinh κ)], with 50 digits where they cancel."""
    with localcontext() as context:
        context.prec, context.Emax = 50, MAX_EMAX
        k = Decimal(kappa)
        ln_sinh_ratio = ((k.exp() - (-k).exp()) / (2 * k)).ln()
        # 1 - cos α = 2 sin²(α / 2); cos α is not exact enough at κ = 1e6.
        return float(ln_sinh_ratio - k + k * 2 * Decimal(math.sin(angle / 2)) ** 2) + math.log(4 * math.pi)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("kappa", KAPPAS)
def test_the_loss_is_the_exact_one_at_every_concentration_and_angle(kappa: float, angle: float) -> None:
    assert float(vmf_loss(*pair(kappa, angle))) == pytest.approx(reference(kappa, angle), rel=1e-8, abs=1e-8)
    # float32 rounds the directions: at κ = 1e6 angles by 1e-7 rad.
    single = float(vmf_loss(*pair(kappa, angle, torch.float32)))
    assert single == pytest.approx(reference(kappa, angle), rel=2e-6, abs=2e-6 + kappa * (1e-7 * angle + 1e-13))


@pytest.mark.parametrize("kappa", [0.2, 0.7, 5.0, 300.0])
def test_its_gradient_is_that_of_its_differences(kappa: float) -> None:
    p, true = pair(kappa, 0.7)
    assert gradcheck(lambda p: vmf_loss(p, true), p.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("kappa", [0.0, 1e-30, *KAPPAS])
def test_loss_and_gradient_are_finite_everywhere(kappa: float, angle: float, dtype: torch.dtype) -> None:
    p, true = pair(kappa, angle, dtype)
    p.requires_grad_()

    loss, degrees = vmf_loss(p, true.float()), angle_deg(p, true.float())
    (gradient,) = torch.autograd.grad(loss.sum(), p)

    assert loss.dtype == degrees.dtype == torch.float32
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


def test_without_any_concentration_the_gradient_leads_to_the_true_direction() -> None:
    """A clamp on κ would kill it there: a network that starts at 0 would stay."""
    p, true = pair(0.0, 0.3)
    (gradient,) = torch.autograd.grad(vmf_loss(p.requires_grad_(), true).sum(), p)
    torch.testing.assert_close(gradient, -true)


@pytest.mark.parametrize("angle", [0.0, 1e-6, 1e-4, 0.01, 1.0, math.pi / 2, 3.1, math.pi])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 1e6])
def test_angles_are_exact_at_both_ends(angle: float, kappa: float) -> None:
    assert float(angle_deg(*pair(kappa, angle))) == pytest.approx(math.degrees(angle), abs=1e-10)
    assert float(angle_deg(*pair(kappa, angle, torch.float32))) == pytest.approx(math.degrees(angle), abs=1e-5)


def test_no_prediction_is_a_right_angle_away_and_has_no_direction() -> None:
    nothing, true = pair(0.0, 0.0, torch.float32)
    assert float(angle_deg(nothing, true)) == pytest.approx(90)
    assert torch.equal(unit_vectors(nothing), nothing)
