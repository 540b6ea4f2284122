"""What torch finds in the environment, and the deterministic mode."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services.trainer.checkpoints.changed_settings import changed_settings
from services.trainer.speed.device_environment import prepare


def test_segments_are_expandable_unless_the_user_said_something() -> None:
    environment = {"HOME": "/home/me"}
    prepare(environment, deterministic=False)
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_compiled_code_lies_in_the_users_own_cache_and_not_at_a_name_that_anybody_can_take() -> None:
    environment = {"HOME": "/home/me"}
    prepare(environment, deterministic=False)
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/home/me/.cache/icestream/inductor"
    assert environment["TRITON_CACHE_DIR"] == "/home/me/.cache/icestream/triton"


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_what_the_user_has_set_stays(name: str) -> None:
    environment = {name: "max_split_size_mb:64", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": "/scratch/inductor", "TRITON_CACHE_DIR": "/scratch/triton"}
    before = dict(environment)
    prepare(environment, deterministic=True)
    assert environment == before


def test_the_deterministic_mode_sets_a_workspace_of_a_fixed_size() -> None:
    environment: dict[str, str] = {}
    prepare(environment, deterministic=True)
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.process
def test_the_deterministic_mode_refuses_what_is_not() -> None:
    code = (
        "import torch\n"
        "from services.trainer.speed.device_environment import be_deterministic\n"
        "be_deterministic()\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_settings_of_the_trainer_that_changed_are_told() -> None:
    before = '{"seed": 1, "trainer": {"device": "cpu", "gone": 1, "wgan": {"critic_lr": 0.1, "betas": [0, 1]}}}'
    now = '{"seed": 2, "trainer": {"device": "cpu", "new": 1, "wgan": {"critic_lr": 0.2, "betas": [0, 1]}}}'
    assert changed_settings(before, now) == ["trainer.wgan.critic_lr: 0.1 → 0.2"]
    assert changed_settings(now, now) == []
    assert changed_settings("{", now) == changed_settings("[]", now) == []
