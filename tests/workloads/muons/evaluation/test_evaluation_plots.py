"""What pictures are drawn from, against numbers known beforehand; and that odd data are drawn, too."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workloads.base.report import evaluation as frame
from workloads.muons import evaluation_plots
from workloads.muons.metrics.bundles import BundleArrays, Sample


def make_bundles(counts: list[int], seed: int = 0) -> BundleArrays:
    rng = np.random.default_rng(seed)
    muons_P3 = np.column_stack([10 ** rng.normal(2, 0.5, sum(counts)), rng.normal(0, 5, (sum(counts), 2))])
    return BundleArrays.of(np.array(counts, np.int64), muons_P3)


def make_sample(counts: list[int], weight_E: np.ndarray | None = None) -> Sample:
    number = len(counts)
    primary_E4 = np.column_stack(
        [np.geomspace(1e5, 1e7, number), np.full(number, 0.3), np.full(number, 4.0), np.linspace(1000, 2800, number)]
    )
    return Sample(primary_E4, np.arange(number), make_bundles(counts), weight_E)


def test_a_histogram_has_the_weights_of_its_events_and_the_error_of_poisson_counts() -> None:
    events = 20_000
    groups = evaluation_plots.Groups(np.arange(events), np.full(events, 2.0), seed=1)
    values = np.random.default_rng(1).random(events)
    edges = np.array([0.0, 0.1, 0.5])
    value, low, high = evaluation_plots.band(groups.histogram(values, edges, np.arange(events)))
    inside = np.histogram(values, edges)[0]
    assert value.tolist() == (2.0 * inside).tolist()
    assert groups.num_events.shape == (1 + evaluation_plots.BOOTSTRAPS, 1)
    assert groups.num_events[0, 0] == 2.0 * events
    # A bootstrap of groups with a fixed number of events each: binomial.
    expected = 2.0 * np.sqrt(inside * (1 - inside / events))
    assert (high - low) / 2 == pytest.approx(expected, rel=0.2)


def test_what_both_sides_share_cancels_in_their_ratio() -> None:
    groups = evaluation_plots.Groups(np.arange(500), None, seed=1)
    same = groups.histogram(np.linspace(0, 1, 500), np.linspace(0, 1, 5), np.arange(500))
    value, low, high = evaluation_plots.band(evaluation_plots.ratio(same, same))
    assert value.tolist() == low.tolist() == high.tolist() == [1.0] * 4
    assert np.isnan(evaluation_plots.ratio(same, np.zeros_like(same))).all()


@pytest.mark.parametrize("most", [1, 2, 7, 100, 12_345])
def test_edges_of_counts_lie_between_integers_and_hold_them_all(most: int) -> None:
    edges = evaluation_plots.count_edges(most)
    assert (np.diff(edges) >= 1).all()
    assert (edges % 1 == 0.5).all()
    assert edges[0] == 0.5
    assert edges[-1] >= most


@pytest.mark.slow
@pytest.mark.parametrize(("real", "generated"), [([0] * 30, [0] * 30), ([1], [50_000])])
def test_both_models_are_in_every_picture_also_of_events_without_muons_or_of_a_single_one(
    real: list[int], generated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(frame, "FigureCanvasAgg", lambda figure: figures.append(figure) or FigureCanvasAgg(figure))
    monkeypatch.setattr(frame, "DPI", 20)  # drawn as it would be, but smaller
    pit_E = np.linspace(0, 1, len(real))
    models = {
        name: evaluation_plots.Generated(make_bundles(generated, seed), pit_E) for seed, name in enumerate(("a", "b"))
    }
    drawn = evaluation_plots.GALLERY.draw(evaluation_plots.EventPairs(make_sample(real), models))
    assert len({one.name for one in drawn}) == len(drawn) == 11
    for one, figure in zip(drawn, figures, strict=True):
        assert one.png.startswith(b"\x89PNG")
        assert one.title
        assert one.caption
        legends = [axes.get_legend() for axes in figure.axes]
        texts = [axes.title for axes in figure.axes] + [text for one in legends if one for text in one.get_texts()]
        assert {"a", "b"} <= {text.get_text().partition(",")[0] for text in texts}, one.name


def test_no_label_of_the_ratio_stands_at_an_end_where_it_would_touch_another() -> None:
    place = evaluation_plots.panels(1, width=7.0)[1][0]
    evaluation_plots.frame_ratio(place.lower, [np.ones((3, 2))])
    low, high = place.lower.get_ylim()
    assert low + 0.02 < min(place.lower.get_yticks()) < 1.0 < max(place.lower.get_yticks()) < high - 0.02
