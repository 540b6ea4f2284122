"""Numbers of nodes on which a run can go on: one rule for each start, the driver on Ray and Slurm's script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from icestream.commands.node.settings import node_config

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from icestream.cli import cli
from icestream.commands.checks import possible_nodes, require_shares
from icestream.commands.ray.driver import ClusterView, NodesDriver, ReserveMachines, largest_fitting
from icestream.commands.slurm import command
from icestream.commands.slurm.script import SlurmJob
from services.trainer.agreement import ShardShare, shares_of_rank

TEMPLATE = Path(command.__file__).with_name("job.sbatch").read_text()
SETTINGS = [(shards, trainers) for shards in (1, 2, 4, 6, 8, 12, 24) for trainers in (1, 2, 3, 4, 5, 8, 17)]


def test_a_lost_machine_leaves_a_number_of_nodes_that_can_share_the_run() -> None:
    """Twelve shards on three nodes with four trainers each: two nodes divide the shards, but their trainers don't."""
    possible = possible_nodes(StreamConfig(shards=12), 4)
    assert possible == (1, 3, 6, 12)
    (order,) = NodesDriver(3, possible, 0).decide(ClusterView(0, 2))
    assert isinstance(order, ReserveMachines)
    assert order.count == 1


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


@pytest.mark.parametrize(("shards", "trainers"), [(12, 4), (8, 4), (12, 5), (6, 3), (2, 16)])
def test_each_number_that_an_engine_may_choose_is_accepted_by_the_nodes(
    tmp_path: Path, shards: int, trainers: int
) -> None:
    (tmp_path / "a.parquet").touch()
    assignments = [f"stream.shards={shards}", "workload=muons"]
    flags = {"input": (str(tmp_path / "a.parquet"),), "local.trainers": trainers}
    possible = possible_nodes(StreamConfig(shards=shards), trainers)
    assert possible
    for machines in range(shards + 2):
        nodes = largest_fitting(possible, machines)
        if nodes:
            assert node_config(tmp_path / "shared", nodes, None, assignments, flags).stream.shards == shards


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
    done = CliRunner().invoke(cli, [*words, "--set", "stream.shards=12"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("WARNING: 12 nodes, and no fewer can share the run's shards with 5 trainers")


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
