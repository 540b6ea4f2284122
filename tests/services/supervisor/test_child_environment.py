"""Secrets of the environment: each child gets those that it needs, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.config.root import Config
from services.supervisor.environment import child_environment, secrets_allowed

HARMLESS = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/someone",
    "LANG": "en_US.UTF-8",
    "TMPDIR": "/scratch",
    "LD_LIBRARY_PATH": "/opt/cuda/lib64",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "NCCL_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "4",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "SLURM_JOB_ID": "17",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "SSL_CERT_FILE": "/etc/ssl/cert.pem",
    "https_proxy": "http://proxy.example:3128",
    "KEYBOARD": "us",
    "ICESTREAM_TRUST_GROUP": "muons",
    "PWD": "/home/someone",
    "OLDPWD": "/scratch",
}
FEDERATION = {"BEARER_TOKEN": "eyJ.x.y", "BEARER_TOKEN_FILE": "/token", "_CONDOR_CREDS": "/creds"}
STORES = {
    **{"AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "s", "AWS_PROFILE": "me", "S3_KEY": "s"},
    **{"AZURE_STORAGE_KEY": "s", "GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "FSSPEC_S3_SECRET": "s"},
    **{"HF_TOKEN": "hf_x", "GITHUB_TOKEN": "gh_x", "X509_USER_PROXY": "/tmp/x509up", "SSH_AUTH_SOCK": "/agent"},
}
PROXY = {"HTTPS_PROXY": "http://me:password@proxy.example:3128"}
WANDB = {"WANDB_API_KEY": "w", "WANDB_BASE_URL": "https://wandb.example"}
OTHERS = {
    **{"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer x", "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c"},
    **{"DB_PASSWORD": "p", "MYSQL_PWD_TOKEN": "p", "OPENAI_API_KEY": "k", "apikey": "k", "SENTRY_DSN": "d"},
    **{"SITE_DATABASE": "postgres://me:password@db/x", "SOME_HEADER": "Bearer abc", "JWT": "eyJhbGciOi.x.y"},
    **{"PEM": "-----BEGIN PRIVATE KEY-----", "MY_PAT": "p", "GIT_COOKIE": "c", "SIGNING_KEYS": "k"},
    **{"MYSQL_PWD": "p", "SSHPASS": "p", "LDAP_BINDPW": "p", "SLACK_WEBHOOK_URL": "https://hooks.example/x"},
}
ALL = {**HARMLESS, **FEDERATION, **STORES, **PROXY, **WANDB, **OTHERS}

TO_FEDERATION = {"outputs": {"destination": "pelican://osg-htc.org/out"}}
WITH_WANDB = {"trainer": {"wandb": {"mode": "online"}}}


@pytest.mark.parametrize(
    ("service", "settings_", "gets"),
    [
        ("fetcher", {}, {**FEDERATION, **STORES, **PROXY}),
        ("fetcher", WITH_WANDB, {**FEDERATION, **STORES, **PROXY}),
        ("decoder", {**WITH_WANDB, **TO_FEDERATION}, {}),
        ("trainer", {}, {}),
        ("trainer", WITH_WANDB, {**WANDB, **PROXY}),
        ("outputs", {}, {}),
        ("outputs", TO_FEDERATION, {**FEDERATION, **PROXY}),
    ],
)
def test_each_child_gets_the_secrets_that_it_needs_and_no_others(
    service: str, settings_: dict[str, object], gets: dict[str, str]
) -> None:
    allowed = secrets_allowed(Config.model_validate(settings_))[service]
    assert child_environment(ALL, allowed) == {**HARMLESS, **gets}


def test_what_configures_a_run_or_a_rank_is_for_no_child() -> None:
    assert child_environment({"ICESTREAM_SEED": "5", "RANK": "3", "MASTER_PORT": "1"}, ("*",)) == {}


WORDS = st.sampled_from(
    [
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "API_KEY",
        "CREDENTIALS",
        "AUTH",
        "COOKIE",
        "HEADERS",
        "KEY",
        "PWD",
        "PASS",
        "BINDPW",
        "WEBHOOK",
    ]
)
SITE = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(site=SITE, word=WORDS, more=st.one_of(st.just(""), SITE.map("_{}".format)), lower=st.booleans())
def test_whatever_is_called_a_secret_reaches_no_decoder(site: str, word: str, more: str, lower: bool) -> None:
    name = f"{site}_{word}{more}"
    assert child_environment({name.lower() if lower else name: "x"}) == {}
