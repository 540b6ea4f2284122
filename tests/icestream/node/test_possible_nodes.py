"""Numbers of nodes on which a run can go on."""

from __future__ import annotations

import pytest

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from icestream.commands.checks import possible_nodes, require_shares, usable_nodes
from services.trainer.agreement import ShardShare, shares_of_rank

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
