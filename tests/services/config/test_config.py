from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import BadInputError
from common.run_dir import CONFIG_FILE
from services.config.given import unused_settings
from services.config.root import Config, known_keys, load_config, store_config
from workloads import registry
from workloads.muons.models.wgan.config import WganConfig

NOTHING: dict[str, str] = {}
CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def toml_file(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_later_sources_win(tmp_path: Path) -> None:
    toml = toml_file(tmp_path, "[stream]\nslots = 3\n")

    def slots(**sources: object) -> int:
        return load_config(tmp_path, **{"environment": NOTHING, **sources}).stream.slots  # type: ignore[arg-type]

    assert slots() == Config().stream.slots == 8
    store_config(tmp_path, Config.model_validate({"stream": {"slots": 2, "block_files": 5}}))
    assert slots() == 2
    assert slots(toml=toml) == 3
    environment = {"ICESTREAM_STREAM__SLOTS": "4"}
    assert slots(toml=toml, environment=environment) == 4
    assert slots(toml=toml, environment=environment, assignments=["stream.slots=5"]) == 5
    flags = {"stream.slots": 6, "stream.block_files": None}
    assert slots(toml=toml, environment=environment, assignments=["stream.slots=5"], flags=flags) == 6
    resolved = load_config(tmp_path, toml=toml, environment=environment, flags=flags)
    assert resolved.stream.block_files == 5, "a flag that was not given changes nothing"


def test_the_last_of_two_assignments_wins(tmp_path: Path) -> None:
    config = load_config(tmp_path, assignments=["stream.slots=5", "slots=7"], environment=NOTHING)
    assert config.stream.slots == 7


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False)],
)
def test_values_are_written_as_in_toml(tmp_path: Path, text: str, value: object) -> None:
    assert load_config(tmp_path, assignments=[f"stream.shuffle={text}"], environment=NOTHING).stream.shuffle is value


def test_a_value_that_is_no_toml_is_text(tmp_path: Path) -> None:
    config = load_config(tmp_path, assignments=["cache_dir=/data/a b", "input=['x', 'y']"], environment=NOTHING)
    assert config.fetcher.cache_dir == Path("/data/a b")
    assert config.input == ("x", "y")


@pytest.mark.parametrize("typo", ["stream.batch_event", "batch_event", "strem.batch_events"])
def test_an_unknown_key_is_told_with_the_nearest_known_one(tmp_path: Path, typo: str) -> None:
    expected = rf"{typo}'; did you mean 'stream\.batch_events'"
    with pytest.raises(BadInputError, match=f"--set: unknown configuration key '{expected}"):
        load_config(tmp_path, assignments=[f"{typo}=1"], environment=NOTHING)
    name = "ICESTREAM_" + typo.upper().replace(".", "__")
    with pytest.raises(BadInputError, match=f"environment variable {name}: unknown configuration key '{expected}"):
        load_config(tmp_path, environment={name: "1"})
    if typo.count("."):
        branch, leaf = typo.split(".")
        with pytest.raises(BadInputError, match="did you mean 'stream"):
            load_config(tmp_path, toml=toml_file(tmp_path, f"[{branch}]\n{leaf} = 1\n"), environment=NOTHING)


def test_a_key_like_no_other_is_told_where_all_keys_are(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="`icestream config --keys` lists all keys"):
        load_config(tmp_path, assignments=["qqqq=1"], environment=NOTHING)


def test_the_last_part_of_a_key_is_enough_where_it_is_unique(tmp_path: Path) -> None:
    config = load_config(tmp_path, assignments=["batch_events=17"], environment={"ICESTREAM_BLOCK_FILES": "3"})
    assert (config.stream.batch_events, config.stream.block_files) == (17, 3)


def test_an_ambiguous_last_part_is_refused_naming_all(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"'threads' could be any of decoder\.threads, trainer\.threads"):
        load_config(tmp_path, assignments=["threads=2"], environment=NOTHING)


def test_an_assignment_without_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="expected key=value"):
        load_config(tmp_path, assignments=["stream.slots"], environment=NOTHING)


def test_other_environment_variables_are_none_of_ours(tmp_path: Path) -> None:
    environment = {"ICE": "1", "_ICESTREAM_PARENT": "1", "ICESTREAM_TRUST_GROUP": "me"}
    assert load_config(tmp_path, environment=environment) == Config()


def test_a_check_between_fields_names_both_and_their_values(tmp_path: Path) -> None:
    pattern = r"stream\.max_particles_per_event = 9 .*stream\.max_particles = 5"
    with pytest.raises(BadInputError, match=pattern):
        load_config(tmp_path, assignments=["max_particles_per_event=9", "max_particles=5"], environment=NOTHING)


@pytest.mark.parametrize(
    ("assignment", "key"),
    [
        ("max_bad_files=1.5", "fetcher.max_bad_files = 1.5"),
        ("max_bad_files=-1", "fetcher.max_bad_files = -1"),
        ("max_bad_files=inf", "fetcher.max_bad_files"),
        ("disk_budget_gib=inf", "fetcher.disk_budget_gib = inf"),
        ("stream.slots=0", "stream.slots = 0"),
        ("stream.slots=two", "stream.slots = 'two'"),
        ("trainer.device=tpu", "trainer.device = 'tpu'"),
        ("seed=-1", "seed = -1"),
        ("seed=true", "seed = True: expected a whole number"),
    ],
)
def test_a_value_that_can_not_be_is_told_with_its_key(tmp_path: Path, assignment: str, key: str) -> None:
    with pytest.raises(BadInputError) as told:
        load_config(tmp_path, assignments=[assignment], environment=NOTHING)
    assert key in str(told.value)


def test_a_value_in_place_of_a_branch_is_told(tmp_path: Path) -> None:
    toml = toml_file(tmp_path, "stream = 3\n")
    with pytest.raises(BadInputError, match="stream = 3"):
        load_config(tmp_path, toml=toml, environment=NOTHING)
    with pytest.raises(BadInputError, match="stream = 3: expected a table"):
        load_config(tmp_path, toml=toml, assignments=["stream.slots=1"], environment=NOTHING)


def test_every_known_key_can_be_assigned_its_default(tmp_path: Path) -> None:
    keys = list(known_keys())
    assert {"seed", "stream.slots", "fetcher.strict", "trainer.max_steps", "local.decoders"} <= set(keys)
    for key in keys:
        value: object = Config()
        for name in key.split("."):
            value = getattr(value, name)
        assert load_config(tmp_path, flags={key: value}, environment=NOTHING) == Config()


def test_a_stored_configuration_is_read_back_the_same(tmp_path: Path) -> None:
    config = load_config(
        tmp_path,
        assignments=["seed=5", "cache_dir=/data", "max_bad_files=0.25", "input=['a', 'b*']", "max_bad_files=0.25"],
        environment=NOTHING,
    )
    store_config(tmp_path, config)
    assert load_config(tmp_path, environment=NOTHING) == config
    assert [path.name for path in tmp_path.iterdir()] == [CONFIG_FILE]
    assert stat.S_IMODE((tmp_path / CONFIG_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["{", "[]", "", "\x00"])
def test_a_stored_configuration_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(BadInputError, match=CONFIG_FILE):
        load_config(tmp_path, environment=NOTHING)


def test_a_toml_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"nowhere\.toml: no such configuration file"):
        load_config(tmp_path, toml=tmp_path / "nowhere.toml", environment=NOTHING)
    with pytest.raises(BadInputError, match=r"run\.toml: not TOML"):
        load_config(tmp_path, toml=toml_file(tmp_path, "a = ="), environment=NOTHING)


@pytest.mark.parametrize(("budget", "files", "allowed"), [(10, 3, 10), (0, 3, 0), (0.5, 9, 4), (1, 100, 1)])
def test_the_failure_budget_is_a_count_or_a_fraction(budget: float, files: int, allowed: int) -> None:
    config = Config.model_validate({"fetcher": {"max_bad_files": budget}})
    assert config.fetcher.bad_files_allowed(files) == allowed
    strict = Config.model_validate({"fetcher": {"max_bad_files": budget, "strict": True}})
    assert strict.fetcher.bad_files_allowed(files) == 0


def test_a_table_with_names_of_the_users_own_is_set_by_toml_and_by_a_flag(tmp_path: Path) -> None:
    names = '["energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m"]'
    expected = {"primary": ("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m")}
    by_flag = load_config(tmp_path, assignments=[f"source.fields.primary={names}"], environment=NOTHING)
    toml = toml_file(tmp_path, f"[source.fields]\nprimary = {names}\n")
    by_toml = load_config(tmp_path, toml=toml, environment=NOTHING)
    assert by_flag.source.fields == by_toml.source.fields == expected
    assert by_flag.stored_workload() != Config().stored_workload()


def test_sections_of_other_workloads_models_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    muons = registry.workload("muons")
    other = replace(muons, name="other", models={"kernel": muons.models["wgan"]})
    monkeypatch.setattr(registry, "every_workload", lambda: iter([muons, other]))
    store_config(tmp_path, Config())
    assert "kernel" not in json.loads((tmp_path / CONFIG_FILE).read_text())["trainer"]
    assert load_config(tmp_path, environment=NOTHING) == Config()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_each_configuration_to_start_from_is_valid(tmp_path: Path, path: Path) -> None:
    assert load_config(tmp_path, toml=path, environment=NOTHING).trainer.of_model is not None


def test_the_plain_wgan_gp_trains_with_the_critic_alone(tmp_path: Path) -> None:
    wgan = load_config(tmp_path, toml=CONFIGS / "wgan-gp.toml", environment=NOTHING).trainer.of_model
    assert isinstance(wgan, WganConfig)
    assert (wgan.critic_steps, wgan.penalty_weight, wgan.gradient_norm) == (5, 10.0, "plain")
    assert (wgan.energy_score_weight, wgan.generator_average_decay, wgan.network.local_tails) == (0.0, 0.0, 0)


def stored_by_an_earlier_version(folder: Path, model: str) -> None:
    """A configuration of a version that had the model `flow` as well."""
    tree = json.loads(Config().own_json())
    tree["trainer"] |= {"model": model, "flow": {"flow_lr": 0.002, "network": {"hidden": 8}}}
    (folder / CONFIG_FILE).write_text(json.dumps(tree))


def test_a_run_of_an_earlier_version_that_had_more_models_goes_on(tmp_path: Path) -> None:
    stored_by_an_earlier_version(tmp_path, "wgan")
    assert load_config(tmp_path, environment=NOTHING) == Config()
    with pytest.raises(BadInputError, match=r"unknown configuration key 'trainer\.flow\.flow_lr'"):
        load_config(tmp_path, assignments=["trainer.flow.flow_lr=0.002"], environment=NOTHING)
    with pytest.raises(BadInputError, match=r"unknown configuration key 'trainer\.flow\.flow_lr'"):
        load_config(tmp_path, toml=toml_file(tmp_path, "[trainer.flow]\nflow_lr = 0.002\n"), environment=NOTHING)


def test_a_section_of_another_model_may_have_keys_of_an_earlier_version_and_the_runs_own_may_not(
    tmp_path: Path,
) -> None:
    tree = json.loads(Config.model_validate({"trainer": {"model": "none"}}).own_json())
    tree["trainer"]["wgan"]["betas"] = [0.0, 0.9]
    (tmp_path / CONFIG_FILE).write_text(json.dumps(tree))
    assert load_config(tmp_path, environment=NOTHING).trainer.model == "none"
    tree["trainer"]["model"] = "wgan"
    (tmp_path / CONFIG_FILE).write_text(json.dumps(tree))
    with pytest.raises(
        BadInputError, match=r"does not know \(trainer\.wgan\.betas\): resume with the version .*--fresh"
    ):
        load_config(tmp_path, environment=NOTHING)


def test_a_run_of_a_model_that_is_gone_names_it_and_the_remedy(tmp_path: Path) -> None:
    stored_by_an_earlier_version(tmp_path, "flow")
    told = r"this run is of the model 'flow': this version of icestream has no model .*wgan.*--fresh"
    with pytest.raises(BadInputError, match=told):
        load_config(tmp_path, environment=NOTHING)
    assert load_config(tmp_path, flags={"trainer.model": "wgan"}, environment=NOTHING) == Config()


def test_settings_of_a_model_that_is_not_trained_are_told(tmp_path: Path) -> None:
    def told(
        model: str, toml: Path | None = None, assignments: list[str] | None = None, **environment: str
    ) -> list[str]:
        sources = {"toml": toml, "assignments": assignments or [], "environment": environment}
        config = load_config(tmp_path, flags={"trainer.model": model}, **sources)  # type: ignore[arg-type]
        assert config.trainer.model == model, "the option wins over the file"
        return unused_settings(config, **sources)  # type: ignore[arg-type]

    unused = "trainer.wgan.critic_steps: not used by the model likelihood"
    for typed in (
        ["trainer.wgan.critic_steps=3"],
        ["critic_steps=3"],
        ["critic_steps=3", "trainer.wgan.critic_steps=4"],
    ):
        assert told("likelihood", assignments=typed) == [unused]
        assert told("wgan", assignments=typed) == []
        assert told("none", assignments=typed) == []
    assert told("likelihood", ICESTREAM_TRAINER__WGAN__CRITIC_STEPS="3") == [unused]
    assert told("likelihood", assignments=["trainer.log_every=3", "trainer.validation.every=5"]) == []

    plain = CONFIGS / "wgan-gp.toml"
    other = f"{plain}: made for the model wgan, but the model likelihood was asked for and is trained"
    assert told("likelihood", plain) == [other]
    assert told("wgan", plain) == []
    both = toml_file(tmp_path, "[trainer.wgan]\ncritic_steps = 3\n[trainer.likelihood]\nschedule_steps = 9\n")
    assert told("likelihood", both) == told("wgan", both) == []


def test_a_model_of_ones_own_is_known_by_its_form_with_settings_that_it_checks_itself(tmp_path: Path) -> None:
    own = "my.models:TRAINING"
    assignments = [f"trainer.model={own}", "trainer.own.hidden=64", "trainer.own.network.depth=3"]
    config = load_config({}, assignments=assignments, environment=NOTHING)
    assert config.trainer.of_model == {"hidden": 64, "network": {"depth": 3}}
    assert config.workload == registry.DEFAULT
    store_config(tmp_path, config)
    assert load_config(tmp_path, environment=NOTHING) == config
    direction = load_config({}, assignments=[f"trainer.model={own}", "workload=direction"], environment=NOTHING)
    assert (direction.workload, direction.trainer.model) == ("direction", own)
    assert unused_settings(config, assignments=assignments, environment=NOTHING) == []
    (unused,) = unused_settings(Config(), assignments=["trainer.own.hidden=64"], environment=NOTHING)
    assert unused == "trainer.own.hidden: not used by the model wgan"
    with pytest.raises(BadInputError, match=r"or package\.module:NAME, a model of your own"):
        load_config({}, assignments=["trainer.model=my/models.py:TRAINING"], environment=NOTHING)


def sharded(**keys: object) -> Config:
    settings = [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
    return load_config({}, assignments=["stream.shards=4", *settings], environment=NOTHING)


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


def test_a_run_without_shards_is_its_own_only_shard() -> None:
    config = Config()
    assert config.of_shard(None) is config
    assert config.of_shard(0) is config
    with pytest.raises(BadInputError, match=r"stream\.shards = 1: a fetcher or decoder needs no --shard"):
        config.of_shard(1)


@pytest.mark.parametrize("shard", [None, 4])
def test_a_process_of_a_sharded_run_has_to_say_its_shard(shard: int | None) -> None:
    with pytest.raises(BadInputError, match=r"stream\.shards = 4: .* needs --shard 0 to --shard 3"):
        sharded().of_shard(shard)


@pytest.mark.parametrize("key", ["transport__listen", "transport__connect"])
def test_shards_over_tcp_are_refused(key: str) -> None:
    with pytest.raises(BadInputError, match=r"stream\.shards = 4: .* can't be used with it; use stream\.shards=1"):
        sharded(**{key: "tcp://127.0.0.1:5570"})


def test_a_run_that_was_stored_with_lanes_may_begin_a_new_plan() -> None:
    assert load_config({"stream": {"lanes": 4, "batch_events": 77}}, environment=NOTHING).stream.batch_events == 77
    with pytest.raises(BadInputError, match=r"stream\.lanes is gone: all trainers of a shard share one stream"):
        load_config({}, assignments=["stream.lanes=4"], environment=NOTHING)
