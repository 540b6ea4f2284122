"""Names, commands, secrets, ranks and restarts of processes. Of restarts the tests make up the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.locks import RunAttempt
from common.process import RANKS_FILE_VARIABLE
from services.config.root import Config
from services.supervisor import child
from services.supervisor.supervisor import TrainerGroup, cause_of, trainer_names
from services.trainer.environment import place_from


@pytest.mark.parametrize(
    ("least_s", "pauses"), [(5, [5, 10, 20, 40, 80, 160, 300, 300, 300]), (0, [0, 0, 0]), (1000, [300, 300])]
)
def test_the_pause_doubles_with_each_death_in_a_row_up_to_the_longest(least_s: float, pauses: list[float]) -> None:
    policy = child.RestartPolicy(least_s)
    for pause_s in pauses:
        policy.started(now_s=1000.0)
        assert policy.died(now_s=1000.0) == pause_s


def test_a_process_that_lived_long_enough_starts_with_the_shortest_pause_again() -> None:
    policy = child.RestartPolicy(5)
    for started_s, died_s, pause_s in ((0.0, 0.0, 5), (0.0, 0.0, 10), (0.0, 60.0, 20), (100.0, 160.1, 5)):
        policy.started(now_s=started_s)
        assert policy.died(now_s=died_s) == pause_s


def test_neither_the_first_start_nor_one_that_is_wanted_again_counts_as_a_restart() -> None:
    policy = child.RestartPolicy(5)
    assert policy.restarts == 0
    for restarts in (0, 1, 2):
        policy.started(0.0)
        assert policy.restarts == restarts
    policy.returns()
    policy.started(2.0)
    assert policy.restarts == 2


@pytest.mark.parametrize(
    "steps", [[200] * child.MOST_FAILURES, [206, 204, 206, 205, 206]], ids=["no step", "made again"]
)
def test_the_same_error_without_a_new_step_in_between_makes_a_restart_useless(steps: list[int]) -> None:
    failure = child.RepeatedFailure()
    verdicts = [failure.again(1, f"ValueError: wrong shape at step 2{n}", step) for n, step in enumerate(steps)]
    assert verdicts == [False] * (child.MOST_FAILURES - 1) + [True]


def test_a_step_or_another_error_in_between_starts_the_count_anew() -> None:
    stepping, changing = child.RepeatedFailure(), child.RepeatedFailure()
    for number in range(3 * child.MOST_FAILURES):
        assert not stepping.again(1, "ValueError: rare", step=number)
        assert not changing.again(1, f"{'Value' if number % 2 else 'Key'}Error: odd", step=0)


@pytest.mark.parametrize(
    ("exit_code", "error"),
    [
        (-9, "ValueError: before the kill"),
        (1, ""),
        (1, "OSError: [Errno 5] Input/output error: 'x'"),
        (1, "PermissionError: [Errno 13] Permission denied"),
        (1, "MemoryError"),
        (1, "common.errors.MachineError: /data/x: Stale file handle"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        (1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        (1, "sqlite3.OperationalError: disk I/O error"),
        (1, "rank 1 is gone: this rank ends too; all resume from the newest checkpoint"),
    ],
)
def test_an_error_of_the_machine_is_tried_again_however_often(exit_code: int, error: str) -> None:
    failure = child.RepeatedFailure()
    assert not any(failure.again(exit_code, error, step=0) for _ in range(5 * child.MOST_FAILURES))


# ------------------------------------------------------------------ names, commands, secrets

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
    **{"A1_SECRET_2": "s", "site_auth": "s", "SITE_CREDENTIALS": "c", "my_password_3": "p", "SITE_PASS": "p"},
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
    allowed = child.secrets_allowed(Config.model_validate(settings_))[service]
    assert child.child_environment(ALL, allowed) == {**HARMLESS, **gets}


def test_what_configures_a_run_or_a_rank_is_for_no_child() -> None:
    assert child.child_environment({"ICESTREAM_SEED": "5", "RANK": "3", "MASTER_PORT": "1"}, ("*",)) == {}


@pytest.mark.parametrize(
    ("name", "service", "shard"),
    [
        (child.fetcher_name(None), "fetcher", None),
        (child.fetcher_name(12), "fetcher", 12),
        (child.decoder_name(None, 3), "decoder", None),
        (child.decoder_name(12, 3), "decoder", 12),
        ("trainer", "trainer", None),
        ("trainer-1", "trainer", None),
    ],
)
def test_a_name_tells_service_and_shard(name: str, service: str, shard: int | None) -> None:
    assert (child.service_of(name), child.shard_of(name)) == (service, shard)


def test_a_command_names_the_shard_and_never_takes_its_modules_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert child.service_command("decoder-002-0", Path("run"), 4)[-4:] == ["--shard", "2", "--on-machine", "4"]
    assert child.service_command("decoder-3", Path("run"), 4)[-4:] == ["icestream", "decoder", "--run-dir", "run"]
    monkeypatch.chdir(tmp_path)
    assert "-P" in child.service_command("decoder-3", Path("run"))


def test_each_gets_its_rank_and_a_restarted_group_meets_in_another_file_of_its_owner(tmp_path: Path) -> None:
    assert TrainerGroup(tmp_path, 1).environment("trainer") == {}, "a single trainer has no rank"
    group = TrainerGroup(tmp_path, 2)
    first, last = group.environment("trainer"), group.environment("trainer-1")
    assert first["RANK"] == "0"
    assert (last["RANK"], last["LOCAL_RANK"], last["WORLD_SIZE"]) == ("1", "1", "2")
    assert "MASTER_PORT" not in last, "any user of the machine could speak to it"
    former = Path(first[RANKS_FILE_VARIABLE])
    assert str(former) == last[RANKS_FILE_VARIABLE]
    former.touch()
    (former.parent / "run").touch()
    assert group.environment("trainer")[RANKS_FILE_VARIABLE] != str(former)
    assert [path.name for path in former.parent.iterdir()] == ["run"]
    assert former.parent.stat().st_mode & 0o777 == 0o700


def test_the_trainers_of_a_node_are_ranks_of_all_nodes_and_meet_in_a_file_of_the_attempt(tmp_path: Path) -> None:
    places = []
    for node in range(3):
        group = TrainerGroup(tmp_path / str(node), 2, node, 3, "node-0", RunAttempt(tmp_path / "shared", 7))
        places += [place_from(group.environment(name)) for name in trainer_names(2)]
    for rank, place in enumerate(places):
        assert place is not None
        assert (place.rank, place.size, place.local_rank, place.local_size) == (rank, 6, rank % 2, 2)
        assert (place.address, place.file) == ("node-0", str(tmp_path / "shared" / "locks" / "ranks-7"))
        assert not place.is_local
    assert TrainerGroup(tmp_path, 1, attempt=RunAttempt(tmp_path, 1)).environment("trainer") == {}


@pytest.mark.parametrize(
    ("exit_codes", "cause"),
    [
        ((0, 0, 0), "trainer"),
        ((1, 1, 2), "trainer-2"),
        ((1, -9, 1), "trainer-1"),
        ((-9, 2, 1), "trainer-1"),
        ((0, 1, 0), "trainer-1"),
        ((-15, -11, 1), "trainer-1"),
        ((0, -15, 1), "trainer-1"),
    ],
)
def test_whose_end_was_the_cause(exit_codes: tuple[int, ...], cause: str) -> None:
    assert cause_of(dict(zip(trainer_names(3), exit_codes, strict=True))) == cause
