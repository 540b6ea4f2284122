"""What the compose files and the Dockerfile promise, without an engine; tests/compose/ runs them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = (ROOT / "docker-compose.yml").read_text()
GPU = (ROOT / "docker-compose.gpu.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
(TRAINING,) = (
    set(names.split("|")) for names in re.findall(r"^TRAINING := (.*)$", (ROOT / "Makefile").read_text(), re.M)
)


def test_the_variables_of_the_files_are_those_of_the_page() -> None:
    page = (ROOT / "docs/how-to/docker.md").read_text()
    used = set(re.findall(r"\$\{(\w+)", COMPOSE + GPU))
    assert used == set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.M))


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_has_an_init_and_no_rights_and_only_loopback_ports(service: str) -> None:
    told = SERVICES[service]
    assert told["init"] is True, "Python as the first process ignores SIGTERM"
    assert told["cap_drop"] == ["ALL"]
    assert told["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in told.get("ports", []))


def test_prometheus_scrapes_the_port_that_the_fetcher_opens() -> None:
    port = SERVICES["fetcher"]["environment"]["ICESTREAM_FETCHER__METRICS_PORT"]
    assert f"[fetcher:{port}]" in (ROOT / "configs/monitoring/prometheus.yml").read_text()


def test_packages_for_training_alone_are_dependencies_that_only_its_image_has() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[^\w-]", one)[0] for one in wanted} >= TRAINING
    data, training = (
        set(re.findall(r"^([\w-]+)==", (ROOT / f"configs/images/{image}.txt").read_text(), re.M))
        for image in ("data", "training")
    )
    assert training - data >= TRAINING - {"torch"}
    assert not data & TRAINING


@pytest.mark.process
def test_fetcher_decoder_and_demo_data_need_no_package_that_only_the_other_image_has() -> None:
    script = (
        "import importlib, sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'tensorboard', 'pynvml', 'scipy', 'matplotlib']))\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    folders = ("services/fetcher", "services/decoder", "common", "workloads/muons/simulator")
    paths = [path.relative_to(ROOT) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    commands = ("icestream.commands.services", "icestream.commands.services", "workloads.muons.simulator.write")
    workloads = ("workloads.muons.workload", "workloads.direction.workload")
    command = [sys.executable, "-c", script, *modules, *commands, *workloads]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- The GPU's image.

STAGES = {name: body for name, body in re.findall(r"^FROM \S+ AS (\w+)$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S)}
GPU_ENVIRONMENT = dict(re.findall(r"(\w+)=(\S+)", "".join(re.findall(r"^ENV (.*)$", STAGES["gpu"], re.M))))


def test_the_image_for_a_gpu_is_checked_by_the_check_that_the_trainer_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line of the Dockerfile, here: it passes with a C compiler, headers and caches, and names what is missing."""
    from importlib.machinery import ModuleSpec

    from common.errors import BadInputError

    (line,) = re.findall(r'^RUN python -c "(.*?)"$', STAGES["gpu"], re.M | re.S)
    check = compile(line.replace("\\\n    ", ""), "Dockerfile", "exec")
    for name, path in GPU_ENVIRONMENT.items():
        monkeypatch.setenv(name, path.replace("/compiled", str(tmp_path)))
    (tmp_path / "bin").mkdir()
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sysconfig.get_paths", lambda *_: {"include": str(tmp_path)})
    monkeypatch.setattr("workloads.base.device.find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(BadInputError, match="a C compiler on CUDA"):
        exec(check, {})  # noqa: S102
    (tmp_path / "bin" / "gcc").touch(mode=0o755)
    exec(check, {})  # noqa: S102
