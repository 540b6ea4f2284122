"""Maximisation of the ln likelihoods of many events at once, by damped scoring steps.

A step solves (information + damping) step = score, in which the information matrix is the sum of the outer products
of the pulses' scores (Berndt, Hall, Hall and Hausman 1974): first derivatives suffice, and the matrix is positive. The
damping of each event falls after a step that was taken and rises after one that would have made its likelihood smaller
(Levenberg and Marquardt).

B events of a batch, K parameters, L pulses, D numbers of a state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""State (B, D) -> ln likelihood (B,), and scores of the pulses (B, K, L): its derivatives by a step, a pulse each."""

Move = Callable[[Tensor, Tensor], Tensor]
"""State (B, D) and step (B, K) -> state (B, D)."""

_FIRST_DAMPING = 0.3
_LEAST_DAMPING, _MOST_DAMPING = 0.2, 1e4
_AFTER_SUCCESS, _AFTER_FAILURE = 0.2, 8.0
_FLOOR = 1e-3
"""Added to the information: a parameter that no pulse tells anything of stays where it is."""
_LONGEST_STEP = 1.0


def maximise(state_BD: Tensor, evaluate: Evaluate, move: Move, steps: int) -> tuple[Tensor, Tensor]:
    """State of the largest ln likelihood found in ``steps`` steps, and that likelihood. -> (B, D), (B,)."""
    value_B, score_BK, information_BKK = _evaluated(evaluate, state_BD)
    damping_B = torch.full_like(value_B, _FIRST_DAMPING)
    for _ in range(steps):
        diagonal_BK = information_BKK.diagonal(dim1=1, dim2=2)
        damped_BKK = information_BKK + torch.diag_embed(damping_B.unsqueeze(1) * diagonal_BK + _FLOOR)
        step_BK = torch.linalg.solve_ex(damped_BKK, score_BK)[0]
        length_B1 = step_BK.abs().amax(1, keepdim=True)
        trial_BD = move(state_BD, step_BK * (_LONGEST_STEP / length_B1.clamp_min(_LONGEST_STEP)))
        found_B, found_BK, found_BKK = _evaluated(evaluate, trial_BD)
        better_B = found_B > value_B
        value_B = torch.where(better_B, found_B, value_B)
        state_BD = torch.where(better_B.unsqueeze(1), trial_BD, state_BD)
        score_BK = torch.where(better_B.unsqueeze(1), found_BK, score_BK)
        information_BKK = torch.where(better_B.view(-1, 1, 1), found_BKK, information_BKK)
        damping_B = (damping_B * torch.where(better_B, _AFTER_SUCCESS, _AFTER_FAILURE)).clamp(
            _LEAST_DAMPING, _MOST_DAMPING
        )
    return state_BD, value_B


def _evaluated(evaluate: Evaluate, state_BD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ln likelihood (B,), score (B, K) and information (B, K, K)."""
    value_B, score_BKL = evaluate(state_BD)
    return value_B, score_BKL.sum(2), score_BKL @ score_BKL.mT
