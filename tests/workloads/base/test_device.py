"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from common.errors import BadInputError
from services.trainer.service import trainer_device
from workloads.base.device import device_named


def test_without_cuda_auto_is_the_cpu_and_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named("auto") == torch.device("cpu")
    with pytest.raises(BadInputError, match=r"^--device cuda:1: there is no CUDA device here"):
        device_named("cuda:1")
    with pytest.raises(BadInputError, match=r"^trainer\.device = 'cuda': there is no CUDA device here"):
        trainer_device("cuda")


def test_a_gpu_of_too_high_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (device_named("auto"), device_named("cuda:1")) == (torch.device("cuda"), torch.device("cuda:1"))
    with pytest.raises(BadInputError, match=r"^trainer\.device = 'cuda:2': there are 2 CUDA devices here"):
        trainer_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "", "mps:0"])
def test_a_name_that_is_no_device_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(BadInputError, match=rf"^--device {name}: expected auto, cpu, cuda or cuda:N$"):
        device_named(name)
