"""Models that are compared, with their settings. Nothing of GraphNeT is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """A model's size, and how it is trained."""

    model: str
    """Class that `networks.py` builds: DynEdge, DeepIce or ParticleNet."""
    size: str
    """Where its size is from, in words."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the class that are not its own defaults."""
    most_pulses: int = 0
    """Pulses of an event that the model sees, 0: all."""
    stretch: float = 1.0
    """Factor of the times: GraphNeT divides those of Kaggle by 30,000 ns, and positions by 500 m."""
    parts: int = 1
    """Parts of a batch by numbers of pulses, with one update for all of them: less is padded."""
    batch_events: int = 16
    learning_rate: float = 1e-3
    epsilon: float = 1e-8
    """Of Adam; GraphNeT's examples have 1e-3."""
    exact_loss: bool = False
    """True for the exact loss, in place of GraphNeT's approximation above κ = 100."""
    cascades: bool = False
    """True if it learns from the added cascades, too."""
    warm_up: float = 0.1
    """Share of the training in which the learning rate grows; then it falls to the end, both linearly."""


_DYNEDGE = {"global_pooling_schemes": ["min", "max", "mean", "sum"], "add_norm_layer": True}
_LIGHT = 20.0
"""Stretch of the times with which light's way and its time are alike: 500 m take 1,700 ns, 30,000 ns / 20 are 1,500."""

# Learning rates, batches, the added cascades, Adam's epsilon and the stretch of the times: chosen on events of the
# simulator's seeds 900 and 901, which nothing is quoted of. See benchmarks/results/2026-11-30-direction-peers.md.
RECIPES = {
    "dynedge": Recipe("DynEdge", "published", _DYNEDGE, stretch=_LIGHT),
    "dynedge-small": Recipe(
        "DynEdge",
        "widths / 4",
        _DYNEDGE
        | {
            "dynedge_layer_sizes": [(32, 64), (84, 64), (84, 64), (84, 64)],
            "post_processing_layer_sizes": [84, 64],
            "readout_layer_sizes": [32],
        },
        stretch=_LIGHT,
    ),
    "deepice": Recipe("DeepIce", "GraphNeT's own (width 384, 12 + 4 blocks)", most_pulses=192, parts=4),
    "deepice-small": Recipe(
        "DeepIce",
        "width 64, 1 + 3 blocks",
        {"hidden_dim": 64, "head_size": 16, "depth": 3, "depth_rel": 1, "seq_length": 16},
        most_pulses=192,
        parts=4,
    ),
    "particlenet": Recipe("ParticleNet", "published", stretch=_LIGHT, learning_rate=3e-3),
    "particlenet-lite": Recipe(
        "ParticleNet",
        "published (Lite)",
        {
            "nb_neighbours": 7,
            "dynedge_layer_sizes": [(32, 32, 32), (64, 64, 64)],
            "readout_layer_sizes": [128],
        },
        stretch=_LIGHT,
        learning_rate=3e-3,
    ),
}
"""Recipes by the name of their rows."""


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return a recipe with other values of some fields. Raises ValueError for an unknown one."""
    known = {one.name for one in fields(Recipe)}
    if unknown := sorted(changes.keys() - known):
        raise ValueError(f"no setting {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return replace(recipe, **changes)
