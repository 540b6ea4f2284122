from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import BadInputError, BadInputsError
from common.paths import CONFIG_FILE
from services.config import root
from workloads import registry

NOTHING: dict[str, str] = {}
CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def toml_file(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_later_sources_win(tmp_path: Path) -> None:
    toml = toml_file(tmp_path, "[stream]\nslots = 3\n")

    def slots(**sources: object) -> int:
        return root.load_config(tmp_path, **{"environment": NOTHING, **sources}).stream.slots  # type: ignore[arg-type]

    assert slots() == root.Config().stream.slots == 8
    root.store_config(tmp_path, root.Config.model_validate({"stream": {"slots": 2, "block_files": 5}}))
    assert slots() == 2
    assert slots(toml=toml) == 3
    environment = {"ICESTREAM_STREAM__SLOTS": "4"}
    assert slots(toml=toml, environment=environment) == 4
    assert slots(toml=toml, environment=environment, assignments=["stream.slots=5"]) == 5
    flags = {"stream.slots": 6, "stream.block_files": None}
    assert slots(toml=toml, environment=environment, assignments=["stream.slots=5"], flags=flags) == 6
    resolved = root.load_config(tmp_path, toml=toml, environment=environment, flags=flags)
    assert resolved.stream.block_files == 5, "a flag that was not given changes nothing"


def test_a_value_that_is_no_toml_is_text_and_the_last_part_of_a_key_is_enough_where_it_is_unique(
    tmp_path: Path,
) -> None:
    assignments = ["cache_dir=/data/a b", "input=['x', 'y']"]
    config = root.load_config(tmp_path, assignments=assignments, environment={"ICESTREAM_BLOCK_FILES": "3"})
    assert config.fetcher.cache_dir == Path("/data/a b")
    assert (config.input, config.stream.block_files) == (("x", "y"), 3)
    with pytest.raises(BadInputError, match=r"'threads' could be any of decoder\.threads, trainer\.threads"):
        root.load_config(tmp_path, assignments=["threads=2"], environment=NOTHING)
    with pytest.raises(BadInputError, match="expected key=value"):
        root.load_config(tmp_path, assignments=["stream.slots"], environment=NOTHING)


def test_a_value_in_place_of_a_branch_is_told(tmp_path: Path) -> None:
    toml = toml_file(tmp_path, "stream = 3\n")
    with pytest.raises(BadInputError, match="stream = 3"):
        root.load_config(tmp_path, toml=toml, environment=NOTHING)
    with pytest.raises(BadInputError, match="stream = 3: expected a table"):
        root.load_config(tmp_path, toml=toml, assignments=["stream.slots=1"], environment=NOTHING)


def test_every_known_key_can_be_assigned_its_default(tmp_path: Path) -> None:
    keys = list(root.known_keys())
    assert {"seed", "stream.slots", "fetcher.strict", "trainer.max_steps", "local.decoders"} <= set(keys)
    for key in keys:
        assert (
            root.load_config(tmp_path, flags={key: root.value_of(root.Config(), key)}, environment=NOTHING)
            == root.Config()
        )


def test_a_stored_configuration_is_read_back_the_same(tmp_path: Path) -> None:
    config = root.load_config(
        tmp_path,
        assignments=["seed=5", "cache_dir=/data", "max_bad_files=0.25", "input=['a', 'b*']", "max_bad_files=0.25"],
        environment=NOTHING,
    )
    root.store_config(tmp_path, config)
    assert root.load_config(tmp_path, environment=NOTHING) == config
    assert [path.name for path in tmp_path.iterdir()] == [CONFIG_FILE]
    assert stat.S_IMODE((tmp_path / CONFIG_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["{", "[]", "", "\x00"])
def test_a_stored_configuration_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(BadInputError, match=CONFIG_FILE):
        root.load_config(tmp_path, environment=NOTHING)


def test_a_toml_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"nowhere\.toml: no such configuration file"):
        root.load_config(tmp_path, toml=tmp_path / "nowhere.toml", environment=NOTHING)
    (tmp_path / "x.yaml").write_text("training: {lr: 1e-3}")
    with pytest.raises(BadInputError, match=r"not TOML.*if it is iceaggr's: icestream migrate .*x\.yaml"):
        root.load_config(tmp_path, toml=tmp_path / "x.yaml", environment=NOTHING)
    with pytest.raises(BadInputError, match=r"run\.toml: not TOML"):
        root.load_config(tmp_path, toml=toml_file(tmp_path, "a = ="), environment=NOTHING)


@pytest.mark.parametrize(("budget", "files", "allowed"), [(10, 3, 10), (0, 3, 0), (0.5, 9, 4), (1, 100, 1)])
def test_the_failure_budget_is_a_count_or_a_fraction(budget: float, files: int, allowed: int) -> None:
    config = root.Config.model_validate({"fetcher": {"max_bad_files": budget}})
    assert config.fetcher.bad_files_allowed(files) == allowed
    strict = root.Config.model_validate({"fetcher": {"max_bad_files": budget, "strict": True}})
    assert strict.fetcher.bad_files_allowed(files) == 0


def test_a_table_with_names_of_the_users_own_is_set_by_toml_and_by_a_flag(tmp_path: Path) -> None:
    names = '["energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m"]'
    expected = {"primary": ("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m")}
    by_flag = root.load_config(tmp_path, assignments=[f"source.fields.primary={names}"], environment=NOTHING)
    toml = toml_file(tmp_path, f"[source.fields]\nprimary = {names}\n")
    by_toml = root.load_config(tmp_path, toml=toml, environment=NOTHING)
    assert by_flag.source.fields == by_toml.source.fields == expected
    assert by_flag.stored_workload() != root.Config().stored_workload()


def test_sections_of_other_workloads_models_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    muons = registry.workload("muons")
    other = replace(muons, name="other", models={"kernel": muons.models["wgan"]})
    monkeypatch.setattr(registry, "every_workload", lambda: iter([muons, other]))
    root.store_config(tmp_path, root.Config())
    assert "kernel" not in json.loads((tmp_path / CONFIG_FILE).read_text())["trainer"]
    assert root.load_config(tmp_path, environment=NOTHING) == root.Config()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_each_configuration_to_start_from_is_valid(tmp_path: Path, path: Path) -> None:
    assert root.load_config(tmp_path, toml=path, environment=NOTHING).trainer.of_model is not None


@pytest.mark.parametrize("key", ["trainer.wgan.betas", "transport.listen"])
def test_a_run_of_another_version_with_other_keys_is_refused(tmp_path: Path, key: str) -> None:
    branch, _, name = key.rpartition(".")
    tree = json.loads(root.Config().own_json())
    inner = tree
    for part in branch.split("."):
        inner = inner[part]
    inner[name] = ""
    (tmp_path / CONFIG_FILE).write_text(json.dumps(tree))
    with pytest.raises(BadInputError, match=rf"does not know \({re.escape(key)}\): resume with the version .*--fresh"):
        root.load_config(tmp_path, environment=NOTHING)


def test_a_run_whose_fetcher_never_starts_is_waited_for_in_vain_and_wrong_settings_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.config.CONNECT_TIMEOUT_S", 0.01)
    with pytest.raises(BadInputError, match=r"no run was started here for 0\.01 s; start its fetcher"):
        root.wait_for_config(tmp_path, [])  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="unknown configuration key 'sed'"):
        root.wait_for_config(tmp_path, [], assignments=["sed=3"])  # type: ignore[arg-type]
    assert root.wait_for_config(tmp_path, ["stop"]) is None  # type: ignore[arg-type]
    root.store_config(tmp_path, root.Config(seed=5))
    assert root.wait_for_config(tmp_path, []) == root.Config(seed=5)  # type: ignore[arg-type]


def test_settings_of_a_model_that_is_not_trained_are_told(tmp_path: Path) -> None:
    def told(
        model: str, toml: Path | None = None, assignments: list[str] | None = None, **environment: str
    ) -> list[str]:
        sources = {"toml": toml, "assignments": assignments or [], "environment": environment}
        config = root.load_config(tmp_path, flags={"trainer.model": model}, **sources)  # type: ignore[arg-type]
        assert config.trainer.model == model, "the option wins over the file"
        return root.unused_settings(config, **sources)  # type: ignore[arg-type]

    unused = "trainer.wgan.critic_steps: not used by the model likelihood"
    typed = ["critic_steps=3", "trainer.wgan.critic_steps=4"]
    assert told("likelihood", assignments=typed) == [unused]
    assert told("wgan", assignments=typed) == told("none", assignments=typed) == []
    assert told("likelihood", ICESTREAM_TRAINER__WGAN__CRITIC_STEPS="3") == [unused]
    assert told("likelihood", assignments=["trainer.log_every=3", "trainer.validation.every=5"]) == []

    of_wgan = toml_file(tmp_path, '[trainer]\nmodel = "wgan"\n[trainer.wgan]\ncritic_steps = 5\n')
    other = f"{of_wgan}: made for the model wgan, but the model likelihood was asked for and is trained"
    assert told("likelihood", of_wgan) == [other]
    assert told("wgan", of_wgan) == []
    both = toml_file(tmp_path, "[trainer.wgan]\ncritic_steps = 3\n[trainer.likelihood]\nschedule_steps = 9\n")
    assert told("likelihood", both) == told("wgan", both) == []


def test_a_model_of_ones_own_is_known_by_its_form_with_settings_that_it_checks_itself(tmp_path: Path) -> None:
    own = "my.models:TRAINING"
    assignments = [f"trainer.model={own}", "trainer.own.hidden=64", "trainer.own.network.depth=3"]
    config = root.load_config({}, assignments=assignments, environment=NOTHING)
    assert config.trainer.of_model == {"hidden": 64, "network": {"depth": 3}}
    assert config.workload == registry.DEFAULT
    root.store_config(tmp_path, config)
    assert root.load_config(tmp_path, environment=NOTHING) == config
    direction = root.load_config({}, assignments=[f"trainer.model={own}", "workload=direction"], environment=NOTHING)
    assert (direction.workload, direction.trainer.model) == ("direction", own)
    assert root.unused_settings(config, assignments=assignments, environment=NOTHING) == []
    (unused,) = root.unused_settings(root.Config(), assignments=["trainer.own.hidden=64"], environment=NOTHING)
    assert unused == "trainer.own.hidden: not used by the model wgan"
    with pytest.raises(BadInputError, match=r"or package\.module:NAME, a model of your own"):
        root.load_config({}, assignments=["trainer.model=my/models.py:TRAINING"], environment=NOTHING)


def sharded(**keys: object) -> root.Config:
    settings = [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
    return root.load_config({}, assignments=["stream.shards=4", *settings], environment=NOTHING)


def test_the_shards_of_a_machine_share_its_disk_and_transfers() -> None:
    config = sharded(
        fetcher__disk_budget_gib=8, fetcher__transfers=6, fetcher__metrics_port=9000, local__max_decoders=9
    )
    first, last = config.of_shard(0, 4), config.of_shard(3, 4)
    assert last.stream.shard == 3
    assert (last.fetcher.disk_budget_gib, last.fetcher.transfers, last.local.max_decoders) == (2, 1, 2)
    assert (first.fetcher.metrics_port, last.fetcher.metrics_port) == (9000, 0), "one of them answers for the run"
    assert config.of_shard(3).fetcher.disk_budget_gib == 8, "alone on its machine"
    assert config.of_shard(3).fetcher.disk_budget == "fetcher.disk_budget_gib = 8"
    assert last.fetcher.disk_budget == "fetcher.disk_budget_gib = 8, of which each of the 4 shards here has 2,"
    assert json.loads(last.own_json())["stream"] == json.loads(config.own_json())["stream"]


def test_a_run_without_shards_is_its_own_only_shard_and_a_process_of_others_has_to_say_its_shard() -> None:
    config = root.Config()
    assert config.of_shard(None) is config.of_shard(0) is config
    with pytest.raises(BadInputError, match=r"stream\.shards = 1: a fetcher or decoder needs no --shard"):
        config.of_shard(1)
    for shard in (None, 4):
        with pytest.raises(BadInputError, match=r"stream\.shards = 4: .* needs --shard 0 to --shard 3"):
            sharded().of_shard(shard)


# -------------------------------------------------------------- all mistakes are reported at once


def test_mistakes_of_a_file_of_the_environment_and_of_flags_are_reported_together(tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text("epoch = 3\n[stream]\nslots = 2.5\n")
    with pytest.raises(BadInputsError) as told:
        root.load_config(tmp_path, toml=toml, environment={"ICESTREAM_SEAD": "1"}, flags={"epochs": -1})
    assert [line.partition(" = ")[0] for line in told.value.lines] == [
        f"{toml}: unknown configuration key 'epoch'; did you mean 'epochs'?",
        "environment variable ICESTREAM_SEAD: unknown configuration key 'sead'; did you mean 'seed'?",
        "epochs",
        "stream.slots",
    ]


def test_a_value_of_which_two_types_are_allowed_is_one_mistake(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"^source\.columns\.muons = 3: expected a text, or a list, for example"):
        root.load_config(tmp_path, environment=NOTHING, assignments=("source.columns.muons=3",))


def test_a_check_between_fields_is_made_although_another_value_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BadInputsError) as told:
        root.load_config(
            tmp_path, environment=NOTHING, assignments=("epochs=-1", "trainer.model=none", "trainer.start_from=x")
        )
    assert len(told.value.lines) == 2
    assert "has no weights" in told.value.lines[1]


def test_a_default_in_the_place_of_a_wrong_value_is_not_blamed(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as told:  # with the default of 65,536 particles, such an event would be too large
        root.load_config(
            tmp_path,
            environment=NOTHING,
            assignments=("stream.max_particles=-1", "stream.max_particles_per_event=1000000"),
        )
    assert str(told.value).startswith("stream.max_particles = -1")


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("trainer.device=gpu", "trainer.device = 'gpu': expected auto, cpu, cuda or cuda:N"),
        ("stream.batch_events=0", "stream.batch_events = 0: expected a number of at least 1"),
        ("stream.slot_mib=0", "stream.slot_mib = 0: expected a number above 0"),
        ("stream.held_out=1", "stream.held_out = 1: expected a number below 1"),
        ("stream.slots=2.5", "stream.slots = 2.5: expected a whole number"),
        ("stream.slots=many", "stream.slots = 'many': expected a whole number"),
        ("stream.slot_mib=much", "stream.slot_mib = 'much': expected a number"),
        ("stream.slot_mib=inf", "stream.slot_mib = inf: expected a finite number"),
        ("stream.shuffle=perhaps", "stream.shuffle = 'perhaps': expected true or false"),
        ("trainer.precision=fp8", "trainer.precision = 'fp8': expected 'auto', 'float32', 'tf32' or 'bf16'"),
        ("seed=[1]", "seed = [1]: expected a whole number"),
    ],
)
def test_a_wrong_value_is_refused_in_plain_words(tmp_path: Path, assignment: str, line: str) -> None:
    with pytest.raises(BadInputError) as error:
        root.load_config(tmp_path, environment=NOTHING, assignments=[assignment])
    assert str(error.value) == line


def test_no_words_of_pydantic_reach_a_user_for_any_setting(tmp_path: Path) -> None:
    for key in root.known_keys():
        for value in ("-1e99", '"no such value"', "[[]]", "true"):
            try:
                root.load_config(tmp_path, environment=NOTHING, assignments=[f"{key}={value}"])
            except BadInputError as error:
                for line in getattr(error, "lines", (str(error),)):
                    assert not re.search(r"Input should|Value error|String should|valid \w+,", line), line


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lr", "did you mean 'trainer.wgan.generator_lr' or 'trainer.wgan.critic_lr' or "),
        ("strem.slots", "did you mean 'stream.slots'?"),
        ("stream.proportion", "did you mean 'stream.weights'?"),
        ("num_workers", "did you mean 'local.decoders'?"),
        ("batch_event", "did you mean 'stream.batch_events'"),
        ("zzzzz", "; `icestream config --keys` lists all keys"),
    ],
)
def test_an_unknown_key_names_those_that_are_meant(tmp_path: Path, key: str, hint: str) -> None:
    with pytest.raises(BadInputError) as error:
        root.load_config(tmp_path, environment=NOTHING, assignments=[f"{key}=1"])
    assert hint in str(error.value)
