"""GraphNeT's models, detector, graphs, task and loss, put together; ParticleNet as published.

The graph of a whole batch is made at once: GraphNeT's own loaders do the same event by event, in worker processes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from graphnet.models import StandardModel
from graphnet.models.components.layers import DynEdgeConv
from graphnet.models.detector.icecube import IceCubeKaggle
from graphnet.models.gnn import DeepIce, DynEdge, ParticleNeT
from graphnet.models.graphs import EdgelessGraph, KNNGraph
from graphnet.models.task.reconstruction import DirectionReconstructionWithKappa
from graphnet.training.loss_functions import VonMisesFisher3DLoss
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import EdgeConv, knn_graph

from benchmarks.peers.direction.conversion import COLUMNS, KagglePulses
from benchmarks.peers.direction.recipes import Recipe
from workloads.direction.models.network import vmf_loss

_LABEL = "direction"


class Peer(nn.Module):
    """A model of GraphNeT from pulses to directions with κ."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self._names = list(COLUMNS)
        backbone, neighbours = _BACKBONES[recipe.model](recipe.arguments)
        graph: dict[str, Any] = {"detector": IceCubeKaggle(), "input_feature_names": self._names}
        self._graph = KNNGraph(nb_nearest_neighbours=neighbours, **graph) if neighbours else EdgelessGraph(**graph)
        task = DirectionReconstructionWithKappa(
            hidden_size=backbone.nb_outputs,
            target_labels=_LABEL,
            loss_function=ExactLoss() if recipe.exact_loss else VonMisesFisher3DLoss(),
        )
        self.model = StandardModel(data_representation=self._graph, backbone=backbone, tasks=[task])

    def data(self, pulses: KagglePulses) -> Data:
        """Return the graphs of a batch: features as the detector scales them, edges of the graph definition."""
        x_P6 = self._graph._detector(pulses.values_P6.clone(), self._names)
        data = Data(x=x_P6, batch=pulses.event_P, n_pulses=pulses.counts_E, **{_LABEL: pulses.direction_E3})
        edges = self._graph._edge_definition
        return data if edges is None else edges(data)

    def forward(self, data: Data) -> Tensor:
        """Return direction and κ of each event. -> (E, 4)."""
        return self.model(data)[0]

    def loss(self, prediction_E4: Tensor, data: Data) -> Tensor:
        """Return the mean loss of the task."""
        return self.model.compute_loss([prediction_E4], [data])


class ExactLoss(VonMisesFisher3DLoss):
    """GraphNeT's loss with the exact norm of the distribution.

    GraphNeT's own lacks ln κ above κ = 100 (`log_cmk_approx` of three dimensions): it is smallest at the root of twice
    the right κ there, and sharp events teach the direction with a weight of 100 at most.
    """

    def _evaluate(self, prediction: Tensor, target: Tensor) -> Tensor:
        return vmf_loss(prediction, target)


class ParticleNetBlock(DynEdgeConv):
    """Edge convolution of ParticleNet (arXiv:1902.08570, figure 1).

    GraphNeT's block lacks the shortcut and its activation, and finds the next neighbours by three of the features.
    """

    def __init__(self, block: DynEdgeConv, width_in: int, width: int) -> None:
        super().__init__(block.nn, aggr="mean", nb_neighbors=block.nb_neighbors)
        self.shortcut = nn.Sequential(nn.Linear(width_in, width, bias=False), nn.BatchNorm1d(width))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the features of the pulses, and the edges by them."""
        x = torch.relu(EdgeConv.forward(self, x, edge_index) + self.shortcut(x))
        return x, knn_graph(x, self.nb_neighbors, batch)


def particle_net(arguments: dict[str, Any]) -> tuple[ParticleNeT, int]:
    """Return ParticleNet as published, and the number of neighbours."""
    network = ParticleNeT(nb_inputs=len(COLUMNS), **arguments)
    widths = [len(COLUMNS), *(sizes[-1] for sizes in network._dynedge_layer_sizes)]
    blocks = zip(network._conv_layers, pairwise(widths), strict=True)
    network._conv_layers = nn.ModuleList(ParticleNetBlock(block, *of_block) for block, of_block in blocks)
    return network, network._nb_neighbours


def dyn_edge(arguments: dict[str, Any]) -> tuple[DynEdge, int]:
    """Return DynEdge, and the number of neighbours."""
    network = DynEdge(nb_inputs=len(COLUMNS), **arguments)
    return network, network._nb_neighbours


def deep_ice(arguments: dict[str, Any]) -> tuple[DeepIce, int]:
    """Return DeepIce, which needs no neighbours."""
    return DeepIce(n_features=len(COLUMNS), **arguments), 0


_BACKBONES = {"DynEdge": dyn_edge, "DeepIce": deep_ice, "ParticleNet": particle_net}
