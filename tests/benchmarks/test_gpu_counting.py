"""Counts of operators, bytes and products, by hand."""

from __future__ import annotations

import torch

from benchmarks.gpu.counting import Counts, counted


def test_bytes_are_those_of_inputs_and_outputs_and_operations_those_of_products() -> None:
    left, right = torch.zeros(3, 4), torch.zeros(4, 5)
    assert counted(lambda: left @ right) == Counts(1, 4 * (3 * 4 + 4 * 5 + 3 * 5), 2 * 3 * 4 * 5)


def test_views_move_nothing() -> None:
    matrix = torch.zeros(6, 4)
    assert counted(lambda: (matrix.t(), matrix[1:], matrix.view(-1), matrix.split(2), matrix.detach())).operators == 0


def test_an_operation_in_place_reads_and_writes() -> None:
    values = torch.zeros(10)
    assert counted(lambda: values.add_(1)) == Counts(1, 2 * 40, 0)


def test_an_expanded_tensor_counts_once_and_an_empty_one_is_not_written() -> None:
    column = torch.zeros(1, 4)
    assert counted(lambda: column.expand(100, 4).sum()).num_bytes == 16 + 4
    assert counted(lambda: torch.empty(100)).num_bytes == 0


def test_gradients_are_counted() -> None:
    left, right = torch.zeros(3, 4, requires_grad=True), torch.zeros(4, 5)
    counts = counted(lambda: torch.autograd.grad(left @ right, left, torch.zeros(3, 5)))
    assert counts.flops == 2 * (2 * 3 * 4 * 5)
