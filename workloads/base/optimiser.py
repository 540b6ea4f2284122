"""Optimiser that skips bad updates, decided on the device without a host sync, and the moving average of weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from workloads.base.context import StepContext

Kind = TypeVar("Kind", Adam, SGD)


class PartGradients(NamedTuple):
    """Gradients of a network for a part of a batch; the batch has the sum over its parts."""

    gradients: list[Tensor]
    sums: Tensor
    """(n,): the loss, then other quantities that are summed over parts and ranks."""


class GradientSum:
    """Sum of the gradients of a batch's parts, in memory of its own."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.sums: Tensor | None = None
        """Sums of the parts; None: there was no part."""

    def add(self, part: PartGradients) -> None:
        """Add a part. The order of the parts decides about the last bits."""
        if self.sums is None:
            *self.gradients, self.sums = torch._foreach_add([*part.gradients, part.sums], 0.0)
        else:
            torch._foreach_add_(self.gradients, part.gradients)
            self.sums += part.sums


class UpdateResult(NamedTuple):
    """Sums and result of an update, all on the device."""

    sums: Tensor
    """Sums of the parts, over all ranks."""
    grad_norm: Tensor
    """(), before clipping."""
    skipped: Tensor
    """(), 1 if the update was skipped: neither weights nor the optimiser's state have changed."""


def uncompiled(kind: type[Kind]) -> type[Kind]:
    """The same optimiser class without torch's decorators for its compiler.

    At their first call they import `torch._dynamo` and sympy: half of the time and 70 MB of a trainer's start.
    """
    marked = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in marked}
    return type(kind.__name__, (kind,), plain | {"step": torch.no_grad()(plain["step"])})


class GuardedOptimiser:
    """Optimiser of one network. `update` sums gradients over the ranks, checks and applies them."""

    def __init__(self, network: nn.Module, optimiser: Adam | SGD, *, clip: float, context: StepContext) -> None:
        """``clip``: gradients of a larger norm are scaled down to it; 0: no limit."""
        self._parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._optimiser = optimiser
        self._base_rate = self.learning_rate = float(optimiser.defaults["lr"])
        self._clip = clip
        largest = torch.finfo(torch.float32).max
        limits = context.limits.max_grad_norm, context.limits.max_loss
        self._limits_2 = torch.tensor([min(limit, largest) for limit in limits], device=context.device)
        self._sum_over_ranks = context.sum_over_ranks

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters of the network."""
        return sum(parameter.numel() for parameter in self._parameters)

    def set_rate_factor(self, factor: float) -> None:
        """Set the learning rate to ``factor`` times the configured one."""
        self.learning_rate = self._base_rate * factor
        for group in self._optimiser.param_groups:
            group["lr"] = self.learning_rate

    def gradients(
        self, losses: Tensor | Sequence[Tensor], weights: Tensor | Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Gradients of Σ loss × weight by the network's weights; 0 for weights that it doesn't depend on.

        ``losses``: one or several, each (). ``weights``: as many constants, by default 1.
        """
        return list(torch.autograd.grad(losses, self._parameters, weights, materialize_grads=True))

    def update(self, total: GradientSum, num_sums: int) -> UpdateResult:
        """Apply the summed gradients of all parts. No parts (a rank without events) count as a gradient of 0.

        The first of the ``num_sums`` sums is the loss, which is checked too.
        """
        gradients, sums = total.gradients, total.sums
        if sums is None:
            gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
            sums = self._limits_2.new_zeros(num_sums)
        self._sum_over_ranks([*gradients, sums])
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        is_good = (torch.stack([norm, sums[0].abs()]) <= self._limits_2).all()  # a NaN is not
        skipped = is_good.logical_not().float()
        if self._clip > 0:
            torch._foreach_mul_(gradients, self._clip / norm.clamp_min(self._clip))
        self._optimiser.found_inf = skipped  # type: ignore[union-attr]  # as torch's GradScaler sets it for fused optimisers
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimiser.step()
        for parameter in self._parameters:
            parameter.grad = None
        return UpdateResult(sums, norm, skipped)

    def state_dict(self) -> dict[str, Any]:
        """State of torch's optimiser."""
        return self._optimiser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from state_dict(). Raises ValueError (torch's) for the state of another network."""
        self._optimiser.load_state_dict(state)


Network = TypeVar("Network", bound=nn.Module)


class AveragedWeights(Generic[Network]):
    """A network and the running mean of its weights, arXiv:1806.04498."""

    def __init__(self, latest: Network, decay: float) -> None:
        self.latest = latest
        self.average: Network = copy.deepcopy(latest).requires_grad_(False)
        self._decay = decay
        self._pairs: tuple[list[Tensor], list[Tensor]] = list(self.average.parameters()), list(latest.parameters())

    def update(self, num_updates: int) -> None:
        """Update the mean after ``num_updates`` updates in all; its window is short at first, to forget the start."""
        decay = min(self._decay, num_updates / (num_updates + 10))
        with torch.no_grad():
            torch._foreach_lerp_(*self._pairs, 1 - decay)
