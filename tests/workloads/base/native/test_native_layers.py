"""Layers without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.base.native import layers

pytestmark = pytest.mark.process  # a compiler


def test_without_a_compiler_torch_computes_the_layers_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not layers.use()
    assert layers.used() is None
    assert caplog.messages == ["layers on the CPU: torch, slower than C++ (there is no C++ compiler)"]
