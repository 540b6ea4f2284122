"""The longest files first, then what starts processes and mostly waits, beside the others; everything runs.

A test that starts a process has the marker `process`: all of tests/pipeline, and every one that XRootD serves, are
given it here. A test without it that starts one fails. `make test-fast` runs what is neither `process` nor `slow`.

One with the marker `cuda` skips itself where torch sees no such device: benchmarks.gpu runs them without this file.

A test that needs an engine of somebody else (Slurm, Ray, XRootD, Lightning, a notebook, ONNX, Triton) has the marker
`engine`. `make test` leaves these out, `make test-engines` runs them, and CI both.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from federation.fixtures import federation, started_federation  # noqa: F401  (for every test)
from no_processes import guarded

TESTS = Path(__file__).parent
PIPELINE = TESTS / "pipeline"
ENGINES = tuple(
    TESTS / name
    for name in (
        "benchmarks",
        "test_ray_example.py",
        "icestream/slurm",
        "pipeline/test_python_resumed_loops.py",
        "test_doc_python.py",
        "test_engine_examples.py",
        "test_packaging.py",
        "workloads/muons/export",
    )
)

LONGEST = (
    "test_ray_example.py",
    "test_doc_python.py",
    "workloads/muons/export/test_export.py",
    "workloads/muons/showers/test_real_showers.py",
    "icestream/slurm/test_slurm.py",
    "pipeline/test_nodes.py",
    "pipeline/test_ranks.py",
    "pipeline/test_python_stream.py",
    "pipeline/test_same_stream.py",
    "pipeline/test_kill.py",
    "pipeline/test_pelican_run.py",
    "services/fetcher/test_dispatcher_chaos.py",
    "workloads/muons/evaluation/test_evaluate_command.py",
    "pipeline/test_sharded_run.py",
    "pipeline/test_bad_input.py",
    "pipeline/test_demo_run.py",
    "pipeline/test_interrupt.py",
    "workloads/muons/models/test_wgan.py",
    "workloads/direction/models/test_direction_tasks.py",
)
"""Files in the order in which workers take them, since a worker runs all of a file."""

# A loaded machine takes its time for an example, and for making one up.
hypothesis.settings.register_profile(
    "patient", deadline=None, max_examples=50, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.is_relative_to(PIPELINE) or parameters.get("started_federation") == "xrootd":
            item.add_marker(pytest.mark.process)
        if parameters.get("started_federation") == "xrootd" or any(map(item.path.is_relative_to, ENGINES)):
            item.add_marker(pytest.mark.engine)
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: [
            place.get(item.path, len(LONGEST)),
            *(item.get_closest_marker(name) is None for name in ("process", "slow")),
        ]
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from guarded(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from guarded(item)


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Commands that are called in this process make files for their owner only from then on: XRootD could read none.

    A test may set another, too.
    """
    before = os.umask(0o077)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Small tensors: several threads wait for each other, on busy cores many times longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def compiler_for_process_tests_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries in C++ are built by a compiler, which is a process; each test decides anew about their use."""
    from common import native
    from common.files.rows import FILES
    from workloads.base.native.layers import LAYERS

    def refuse(*_: object) -> None:
        raise RuntimeError("not in a test without the marker `process`")

    for library in (LAYERS, FILES):
        monkeypatch.setattr(library, "used", None)
        monkeypatch.setattr(library, "found", None)
    if request.node.get_closest_marker("process") is None:
        monkeypatch.setattr(native, "built", refuse)
