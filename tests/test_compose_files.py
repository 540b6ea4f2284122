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
(TRAINING,) = (names.split() for names in re.findall(r'^ARG TRAINING="(.*)"$', DOCKERFILE, re.M))


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


def test_every_mounted_path_of_the_checkout_exists() -> None:
    mounts = [mount for told in SERVICES.values() for mount in told["volumes"] if isinstance(mount, dict)]
    sources = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", mount["source"]) for mount in mounts]
    assert len(sources) == 3
    assert all((ROOT / source).exists() for source in sources)
    assert (
        "options: {path: /etc/grafana/provisioning/dashboards}"
        in (ROOT / "configs/monitoring/grafana/dashboards/dashboards.yml").read_text()
    )


def test_prometheus_scrapes_the_port_that_the_fetcher_opens() -> None:
    port = SERVICES["fetcher"]["environment"]["ICESTREAM_FETCHER__METRICS_PORT"]
    assert f"[fetcher:{port}]" in (ROOT / "configs/monitoring/prometheus.yml").read_text()


def test_packages_for_training_alone_are_dependencies() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert set(TRAINING) <= {re.split(r"[^\w-]", one)[0] for one in wanted}


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
    commands = ("icestream.commands.fetcher", "icestream.commands.decoder", "workloads.muons.commands.simulate")
    workloads = ("workloads.muons.workload", "workloads.direction.workload")
    command = [sys.executable, "-c", script, *modules, *commands, *workloads]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
