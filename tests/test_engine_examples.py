"""Examples for HTCondor and Kubernetes: read by HTCondor's own parser, and checked by the schemas of Kubernetes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from torch.distributed.run import get_args_parser

from icestream.cli import cli

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text()))


def parsed(words: list[str]) -> dict[str, Any]:
    """Options of a command line of `icestream run`."""
    assert words[0] == "run"
    run = cli.get_command(click.Context(cli), "run")
    assert run is not None
    options, others, _ = run.make_parser(click.Context(run)).parse_args(words[1:])
    assert not others
    return options


def checked(manifest: dict[str, Any]) -> None:
    """Compare with the schema; unknown fields are mistakes."""
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_job_fits_the_schemas_of_kubernetes() -> None:
    manifests = documents("job.yaml")
    assert [manifest["kind"] for manifest in manifests] == ["NetworkPolicy", "Job"]
    for manifest in manifests:
        checked(manifest)


def test_each_pod_of_the_job_runs_a_torchrun_that_its_parser_reads_for_as_many_machines_as_there_are_pods() -> None:
    spec = documents("job.yaml")[1]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    made, torchrun = container["args"][0].split("&& exec torchrun ")
    options = get_args_parser().parse_args(shlex.split(torchrun))
    assert options.nnodes == f"1:{spec['parallelism']}"
    assert int(options.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert (options.module, options.training_script) == (True, "icestream")
    shared = parsed(options.training_script_args)["shared"]
    assert shlex.split(made) == ["mkdir", "-p", "-m", "700", shared, "&&", "chmod", "go-w", shared]
    assert options.rdzv_endpoint == f"{shared}/rendezvous"
    variables = {variable["name"] for variable in container["env"]}
    assert {options.rdzv_id, options.local_addr} == {"$JOB", "$POD_IP"} <= {f"${name}" for name in variables}
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in variables


def test_other_pods_reach_no_port_of_the_job_whose_pods_have_no_rights_that_they_do_not_need() -> None:
    policy, job = documents("job.yaml")
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    template = job["spec"]["template"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": chosen}}]}]
    assert chosen.items() <= template["metadata"]["labels"].items()
    wanted = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    assert wanted.items() <= template["spec"]["securityContext"].items()
    for container in template["spec"]["containers"]:
        rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == rights


@pytest.mark.process  # the parser looks for the user's name and home
def test_the_submit_file_is_read_by_htcondor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", "ONLY_ENV")
    htcondor2 = pytest.importorskip("htcondor2")
    text = (EXAMPLES / "htcondor.sub").read_text()
    submit = htcondor2.Submit(text)
    assert submit.getQArgs() == ""
    assert submit.expand("kill_sig") == "SIGTERM"
    assert submit.expand("retry_until") == "ExitCode == 2"
    arguments = re.sub(r'^"|"$', "", submit.expand("arguments"))
    assert parsed(shlex.split(arguments))["run_dir"] == "/shared/runs/mine"
