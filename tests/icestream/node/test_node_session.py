"""Mistakes with `icestream run --shared`, under torchrun: one line, before anything starts."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from of_torchrun import of_torchrun

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from common.locks import RunLock
from icestream.commands.checks import possible_nodes, refuse_folder_of_nodes, require_shares, usable_nodes
from icestream.commands.node_session import claim_run_dir, require_inputs, require_same, require_shared, run_id
from icestream.commands.run import run
from services.config.root import Config, load_config
from services.trainer.agreement import ShardShare, shares_of_rank


def config(*assignments: str, **flags: Any) -> Config:
    return load_config({}, assignments=("input=['/data/*.parquet']", *assignments), flags=flags, environment={})


def started(place: Path, *arguments: str, **variables: str) -> Any:
    """Result of the command as the only node of a run."""
    folders = ["--shared", str(place / "shared"), "--run-dir", str(place / "run")]
    return CliRunner().invoke(run, [*folders, *arguments], env=of_torchrun() | variables)


def refused(place: Path, *arguments: str, **variables: str) -> str:
    """Error of the command, which has started nothing."""
    result = started(place, *arguments, **variables)
    assert result.exit_code != 0
    assert not (place / "run" / "logs").exists()
    return str(result.exception) if isinstance(result.exception, BadInputError) else str(result.output)


def test_the_first_process_of_a_machine_stands_for_it(tmp_path: Path) -> None:
    """It alone says what is wrong, too."""
    silent = started(tmp_path, "--epoch", "3", LOCAL_RANK="3", LOCAL_WORLD_SIZE="4")
    assert (silent.exit_code, silent.output) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    assert "--trainers 2, but torchrun --nproc-per-node 1" in refused(tmp_path, "--trainers", "2")
    assert "--fresh and --new-plan are for one machine" in refused(tmp_path, "--fresh", "--yes")
    result = CliRunner().invoke(run, ["--run-dir", str(tmp_path / "run")], env=of_torchrun(0, 2))
    assert str(result.exception) == "2 machines need --shared, a folder that all of them see"
    result = CliRunner().invoke(run, ["--shared", str(tmp_path / "shared")])
    assert "for several machines, `torchrun … -m icestream run` on each" in str(result.exception)
    assert "give torchrun a name of this launch, --rdzv-id" in refused(tmp_path, TORCHELASTIC_RUN_ID="none")
    without = {name: value for name, value in of_torchrun().items() if name != "GROUP_RANK"}
    result = CliRunner().invoke(run, ["--run-dir", str(tmp_path / "run")], env=without)
    assert "torchrun's other variables are not: 'GROUP_RANK'" in str(result.exception)


def test_a_run_directory_in_use_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun has 30 s to end a former start, and the next one may come first."""
    monkeypatch.setattr("icestream.commands.node_session.FORMER_S", 0.0)
    (tmp_path / "run").mkdir()
    with RunLock(tmp_path / "run", "run", "icestream run") as former:
        assert "the run is in use by" in refused(tmp_path, "-i", "x")

        def ends(text: str) -> None:
            former.close()

        monkeypatch.setattr("icestream.commands.node_session.FORMER_S", 60.0)
        monkeypatch.setattr("icestream.commands.node_session.NodeSession._say", lambda self, text: ends(text))
        assert "x: " in refused(tmp_path, "-i", "x")


def test_another_run_is_refused_and_a_frozen_start_of_this_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.commands.node_session.FORMER_S", 0.0)
    (tmp_path / "shared").mkdir(mode=0o700)
    with RunLock(tmp_path / "shared", "run", "icestream run, launch of-another"):
        assert "in use by" in refused(tmp_path, "-i", "x")
    with RunLock(tmp_path / "shared", "run", "icestream run, launch of-the-test"):
        output = refused(tmp_path, "-i", "x")
        assert "is given up" in output
        assert "x: " in output


def test_no_input_and_a_mistake_of_the_settings(tmp_path: Path, torchrun_is_sent: list[int]) -> None:
    """torchrun would make the same mistake at each restart, and ends with it."""
    assert "no input given" in refused(tmp_path)
    assert torchrun_is_sent == [signal.SIGTERM]
    assert "--set stream.shards" in refused(tmp_path, "-i", "x", GROUP_WORLD_SIZE="2", LOCAL_WORLD_SIZE="17")
    assert "No such option '--epoch'" in refused(tmp_path, "--epoch", "3")
    assert torchrun_is_sent == 3 * [signal.SIGTERM]


def test_a_shared_folder_in_which_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    with pytest.raises(BadInputError, match=r"shared/below: can't write there .Not a directory.; choose a folder"):
        require_shared(tmp_path / "shared" / "below", tmp_path / "run")


def test_a_shared_folder_that_others_can_change(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(BadInputError, match=r"--shared .*shared \(mode 0777.*can be changed by every user"):
        require_shared(tmp_path / "shared", tmp_path / "run")


def test_a_run_directory_that_is_the_shared_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="must be a folder of each node"):
        require_shared(tmp_path, tmp_path / "." / "")


def test_folders_inside_of_an_input(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    shared = tmp_path.with_name(f"{tmp_path.name}-shared")
    inputs = ("-i", f"{tmp_path}/**/*.parquet")
    assert re.search("the run directory .*/shared lies inside of the input", refused(tmp_path, *inputs))
    assert re.search("the run directory .*/run lies inside of", refused(tmp_path, *inputs, "--shared", str(shared)))
    assert not (shared / "config.json").exists()


def test_several_nodes_of_a_run_without_shards_are_told_what_to_set() -> None:
    with pytest.raises(BadInputError, match=r"new run: --set stream.shards=2, or a multiple of it$"):
        require_shares(StreamConfig(), 2, 3)
    require_shares(StreamConfig(shards=2), 2, 3)


def test_a_copy_of_the_outputs_is_not_for_nodes(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").touch()
    output = refused(tmp_path, "-i", str(tmp_path / "x.parquet"), "--set", "outputs.destination=/copies")
    assert "outputs.destination: results of several nodes are in --shared" in output


@pytest.mark.parametrize(
    ("assignment", "key"), [("seed=5", "seed"), ("stream.unit_events=99", "stream.unit_events"), ("epochs=7", "epochs")]
)
def test_a_setting_that_is_not_that_of_node_0(assignment: str, key: str) -> None:
    with pytest.raises(BadInputError, match=rf"{key} = \d+, but node 0 has \d+: give all nodes the same settings"):
        require_same(config(), config(assignment))


@pytest.mark.parametrize("assignments", [("fetcher.ranges=0:3000:1000",), ("fetcher.done=/done.txt",)])
def test_files_that_are_not_those_of_node_0(assignments: tuple[str, ...]) -> None:
    """The fetchers of the other nodes would wait for lists that node 0 never makes."""
    with pytest.raises(BadInputError, match=r"^fetcher\.\w+ = .*, but node 0 has .*: give all nodes the same settings"):
        require_same(config("fetcher.ranges=0:2000:1000"), config("fetcher.ranges=0:2000:1000", *assignments))


def test_settings_of_a_machine_may_differ() -> None:
    require_same(config(), config("trainer.device=cpu", "trainer.threads=3", "local.decoders=7", "decoder.threads=2"))
    with pytest.raises(BadInputError, match="2 trainers here, but 1 on node 0"):
        require_same(config(), config("local.trainers=2"))


def test_inputs_that_this_machine_does_not_see(tmp_path: Path) -> None:
    for text in (tmp_path, tmp_path / "*.parquet", tmp_path / "**" / "x-[0-9].parquet"):
        require_inputs(config(input=(str(text),)))
        with pytest.raises(BadInputError, match=r"gone is not on this machine; all nodes need the inputs"):
            require_inputs(config(input=(str(text).replace(str(tmp_path), str(tmp_path / "gone")),)))
    require_inputs(config(input=("pelican://osg-htc.org/x/*.parquet",)))


def test_a_run_directory_belongs_to_one_run_and_nothing_is_deleted(tmp_path: Path) -> None:
    shared, other, run_dir = tmp_path / "shared", tmp_path / "other", tmp_path / "run"
    for folder in (shared, other, run_dir):
        folder.mkdir()
    name = run_id(shared, begins=True)
    assert run_id(shared, begins=False) == run_id(shared, begins=True) == name
    claim_run_dir(run_dir, name, shared)
    claim_run_dir(run_dir, name, shared)
    (run_dir / "mine.txt").write_text("of a user")
    with pytest.raises(BadInputError, match="of a node of another run"):
        claim_run_dir(run_dir, run_id(other, begins=True), other)
    assert (run_dir / "mine.txt").read_text() == "of a user"


@pytest.mark.parametrize("name", ["run-id", "node.json"])
def test_a_folder_of_nodes_is_no_run_of_one_machine(tmp_path: Path, name: str) -> None:
    refuse_folder_of_nodes(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(BadInputError, match="go on with --shared and torchrun"):
        refuse_folder_of_nodes(tmp_path)


def test_a_run_directory_of_one_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(BadInputError, match="a run of one machine"):
        claim_run_dir(tmp_path, "x", tmp_path / "shared")


SETTINGS = [(shards, trainers) for shards in (1, 2, 4, 6, 8, 12, 24) for trainers in (1, 2, 3, 4, 5, 8, 17)]


def test_a_lost_machine_leaves_a_number_of_nodes_that_can_share_the_run() -> None:
    """Twelve shards on three nodes with four trainers each: two nodes divide the shards, but their trainers don't."""
    stream = StreamConfig(shards=12)
    assert possible_nodes(stream, 4) == (1, 3, 6, 12)
    assert [usable_nodes(stream, nodes, 4) for nodes in (1, 2, 3, 5, 13)] == [1, 1, 3, 3, 12]
    with pytest.raises(BadInputError, match=r"possible numbers of nodes with 5 trainers each: 12"):
        usable_nodes(stream, 11, 5)


@pytest.mark.parametrize(("shards", "trainers"), SETTINGS)
def test_on_a_possible_number_of_nodes_all_shards_have_as_many_trainers_or_all_trainers_as_many_shards(
    shards: int, trainers: int
) -> None:
    stream = StreamConfig(shards=shards)
    possible = possible_nodes(stream, trainers)
    for nodes in range(1, shards + 1):
        if nodes not in possible:
            with pytest.raises(BadInputError):
                require_shares(stream, nodes, trainers)
            continue
        require_shares(stream, nodes, trainers)
        ranks = nodes * trainers
        shares = [shares_of_rank(stream, rank, ranks) for rank in range(ranks)]
        each = max(ranks // shards, 1)
        assert each <= MOST_TRAINERS
        found = sorted(one for of_rank in shares for one in of_rank)
        assert found == [ShardShare(shard, rank, each) for shard in range(shards) for rank in range(each)]
        assert {len(of_rank) for of_rank in shares} == {max(shards // ranks, 1)}
        of_node = shards // nodes
        for rank, of_rank in enumerate(shares):
            own = range(rank // trainers * of_node, (rank // trainers + 1) * of_node)
            assert all(one.shard in own for one in of_rank), "shards of its own node, where their fetchers are"
