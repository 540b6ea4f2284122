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

from icestream.cli import cli

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text()))


def parsed(words: list[str]) -> dict[str, Any]:
    """Options of a command line of icestream, for a verb that has them all."""
    verb = cli.get_command(click.Context(cli), words[0])
    assert verb is not None
    context = click.Context(verb, info_name=words[0], **verb.context_settings)
    options, others, _ = verb.make_parser(context).parse_args(words[1:])
    run = cli.get_command(click.Context(cli), "run")
    assert run is not None
    rest = [*options.pop("options", ()), *others] if words[0] == "ray" else []
    return options | run.make_parser(click.Context(run)).parse_args(rest)[0]


def checked(manifest: dict[str, Any]) -> None:
    """Compare with the schema; unknown fields are mistakes."""
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_indexed_job_fits_the_schemas_of_kubernetes() -> None:
    manifests = documents("indexed-job.yaml")
    assert [manifest["kind"] for manifest in manifests] == ["Service", "NetworkPolicy", "Job"]
    for manifest in manifests:
        checked(manifest)
    manifests[2]["spec"]["completionsMode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        checked(manifests[2])


def test_the_indexed_job_starts_as_many_nodes_as_it_has_pods_and_meets_at_the_first() -> None:
    service, _, job = documents("indexed-job.yaml")
    spec = job["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    words = shlex.split(container["args"][0].removeprefix("exec icestream "))
    options = parsed(words)
    assert words[:3] == ["node", "--node", "$JOB_COMPLETION_INDEX"]
    assert int(options["nodes"]) == spec["completions"] == spec["parallelism"]
    assert options["master"].startswith(f"{job['metadata']['name']}-0.{service['metadata']['name']}:")
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert int(options["trainers"]) == container["resources"]["limits"]["nvidia.com/gpu"]


def test_the_pods_of_the_rayjob_fit_the_schemas_and_its_version_is_the_pinned_one() -> None:
    policy, job = documents("rayjob.yaml")
    checked(policy)
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    for group in (cluster["headGroupSpec"], workers):
        checked({**POD, "spec": group["template"]["spec"]})
    options = parsed(shlex.split(job["spec"]["entrypoint"])[1:])
    assert int(options["nodes"]) == workers["minReplicas"]
    (container,) = workers["template"]["spec"]["containers"]
    assert int(options["gpus"]) == container["resources"]["limits"]["nvidia.com/gpu"] == int(options["trainers"])
    assert int(options["cpus"]) == int(container["resources"]["requests"]["cpu"])
    pins = (EXAMPLES.parent / "constraints.txt").read_text()
    assert f"ray=={cluster['rayVersion']}\n" in pins


@pytest.mark.parametrize("name", ["indexed-job.yaml", "rayjob.yaml"])
def test_other_pods_reach_no_port_of_a_run_whose_pods_have_no_rights_that_they_do_not_need(name: str) -> None:
    (policy,) = (one for one in documents(name) if one["kind"] == "NetworkPolicy")
    job = documents(name)[-1]
    if name == "indexed-job.yaml":
        templates = [job["spec"]["template"]]
    else:
        cluster = job["spec"]["rayClusterSpec"]
        templates = [cluster["headGroupSpec"]["template"], *(one["template"] for one in cluster["workerGroupSpecs"])]
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert {"podSelector": {"matchLabels": chosen}} in policy["spec"]["ingress"][0]["from"]
    for template in templates:
        assert chosen.items() <= template["metadata"]["labels"].items()
        pod = template["spec"]["securityContext"]
        wanted = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        assert {name: pod[name] for name in wanted} == wanted
        for container in template["spec"]["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context.get("readOnlyRootFilesystem", False) == (name == "indexed-job.yaml")


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
