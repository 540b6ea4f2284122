"""Numbers of nodes on which a run can go on: one rule for each start, the driver on Ray and Slurm's script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.config import StreamConfig
from common.errors import BadInputError
from icestream.cli import cli
from icestream.commands.node.settings import node_config
from icestream.commands.possible_nodes import possible_nodes, require_shares
from icestream.commands.ray.driver import ClusterView, NodesDriver, ReserveMachines, largest_fitting
from icestream.commands.slurm import command
from icestream.commands.slurm.script import SlurmJob
from services.trainer.stream.lane import lanes_of_share, shares_of_rank

TEMPLATE = Path(command.__file__).with_name("job.sbatch").read_text()
SETTINGS = [
    (shards, lanes, trainers)
    for shards in (1, 2, 4, 6, 8, 12, 24)
    for lanes in (shards, 2 * shards, 3 * shards)
    for trainers in (1, 2, 3, 4, 5, 8)
]


def stream_of(shards: int, lanes: int) -> StreamConfig:
    return StreamConfig(shards=shards, lanes=lanes, slots=max(8, lanes))


def test_a_lost_machine_leaves_a_number_of_nodes_that_can_share_the_run() -> None:
    """Twelve shards on three nodes with four trainers each: two nodes divide the shards, but their trainers don't."""
    possible = possible_nodes(stream_of(12, 12), 4)
    assert possible == (1, 3)
    (order,) = NodesDriver(3, possible, 0).decide(ClusterView(0, 2))
    assert isinstance(order, ReserveMachines)
    assert order.count == 1


@pytest.mark.parametrize(("shards", "lanes", "trainers"), SETTINGS)
def test_on_a_possible_number_of_nodes_each_lane_has_one_trainer(shards: int, lanes: int, trainers: int) -> None:
    stream = stream_of(shards, lanes)
    possible = possible_nodes(stream, trainers)
    for nodes in range(1, shards + 1):
        if nodes not in possible:
            with pytest.raises(BadInputError):
                require_shares(stream, nodes, trainers)
            continue
        require_shares(stream, nodes, trainers)
        ranks = nodes * trainers
        shares = [
            [(share, lanes_of_share(stream, share)) for share in shares_of_rank(stream, r, ranks)] for r in range(ranks)
        ]
        found = [(share.shard, lane.number) for of_rank in shares for share, lanes_ in of_rank for lane in lanes_]
        assert sorted(found) == [(shard, lane) for shard in range(shards) for lane in range(stream.shard_lanes)]
        assert len({sum(len(lanes_) for _, lanes_ in of_rank) for of_rank in shares}) == 1, "as many lanes each"


@pytest.mark.parametrize(("shards", "lanes", "trainers"), [(12, 12, 4), (8, 16, 4), (12, 60, 5), (6, 12, 3)])
def test_each_number_that_an_engine_may_choose_is_accepted_by_the_nodes(
    tmp_path: Path, shards: int, lanes: int, trainers: int
) -> None:
    (tmp_path / "a.parquet").touch()
    stream = stream_of(shards, lanes)
    assignments = [f"stream.shards={shards}", f"stream.lanes={lanes}", f"stream.slots={stream.slots}", "workload=muons"]
    flags = {"input": (str(tmp_path / "a.parquet"),), "local.trainers": trainers}
    possible = possible_nodes(stream, trainers)
    assert possible
    for machines in range(shards + 2):
        nodes = largest_fitting(possible, machines)
        if nodes:
            assert node_config(tmp_path / "shared", nodes, None, assignments, flags).stream.lanes == lanes


@pytest.mark.process
@pytest.mark.parametrize(("machines", "nodes"), [(1, 1), (2, 1), (3, 3), (5, 3)])
def test_the_script_of_slurm_takes_the_largest_possible_number(tmp_path: Path, machines: int, nodes: int) -> None:
    assert chosen(tmp_path, (1, 3), machines) == f"{nodes}\n"


@pytest.mark.process
def test_the_script_of_slurm_ends_where_no_number_of_nodes_is_possible(tmp_path: Path) -> None:
    assert "2 machines are too few: possible numbers of nodes are 3 6" in chosen(tmp_path, (3, 6), 2, exit_code=2)


def chosen(folder: Path, possible: tuple[int, ...], machines: int, exit_code: int = 0) -> str:
    """Output of the part of the script that chooses a number of nodes, and prints it."""
    job = SlurmJob(
        name="x",
        nodes=3,
        possible=possible,
        gpus=0,
        time="1",
        shared=Path("/shared"),
        run_dir=Path("/local"),
        program=("icestream",),
        options=(),
    )
    script = job.script(TEMPLATE)
    numbers = script[script.index("POSSIBLE=(") :].partition("\n")[0]
    choice = script[script.index("nodes=0") : script.index("hosts=$(")]
    code = f"SLURM_JOB_NUM_NODES={machines}\n{numbers}\n{choice}\necho $nodes"
    done = subprocess.run(["bash", "-uc", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == exit_code
    return done.stdout + done.stderr


def test_a_run_that_can_go_on_with_no_fewer_nodes_is_warned_of_at_its_start(tmp_path: Path) -> None:
    words = ["slurm", "--nodes", "12", "--shared", str(tmp_path), "--run-dir", "/local", "--trainers", "5"]
    settings = ("stream.shards=12", "stream.lanes=60", "stream.slots=60")
    done = CliRunner().invoke(cli, [*words, *(word for one in settings for word in ("--set", one))])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(
        "WARNING: 12 nodes, and no fewer can share the run's shards and lanes with 5 trainers"
    )


def test_a_first_start_with_too_few_machines_says_which_numbers_are_possible() -> None:
    (order,) = NodesDriver(6, (3, 6), 0).decide(ClusterView(0, 2))
    assert "2 machines of the cluster are large enough for a node" in order.why
    assert "possible numbers of nodes are 3, 6" in order.why


def test_after_a_refusal_of_the_smallest_possible_number_all_are_tried_again() -> None:
    driver = NodesDriver(4, (2, 4), 0)
    (order,) = driver.decide(ClusterView(0, 2))
    assert isinstance(order, ReserveMachines)
    driver.decide(ClusterView(1, 2, is_refused=True))
    (order,) = driver.decide(ClusterView(1000, 4))
    assert isinstance(order, ReserveMachines)
    assert order.count == 4
