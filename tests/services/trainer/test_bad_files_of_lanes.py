"""What a checkpoint knows of bad files, wherever its lanes stand: enough to plan the same units without a ledger.

The cores of fetcher and trainer with each other: plan, dispatcher, position.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from common import messages as m
from common.config import StreamConfig
from common.plan import Footer, RowGroup, SlotCapacity, StagedFile, plan_block
from services.fetcher.dispatcher import Action, Dispatcher, Send
from services.trainer.stream.position import StreamPosition
from workloads.muons.columns import MUONS

PLAN = "ab" * 16
STREAM = StreamConfig(block_files=2, unit_events=20, batch_events=10)
CAPACITY = SlotCapacity(MUONS, STREAM)
BAD_ROWS = 5


def planned(num_units: Sequence[int], bad: set[int], cursor: m.Cursor) -> list[m.Unit]:
    """Blocks of two files, from that of ``cursor`` on. File f gives num_units[f] units, or none if it is bad."""
    units: list[m.Unit] = []
    for block in range(cursor.block, len(num_units) // 2):
        staged = []
        for file in (2 * block, 2 * block + 1):
            groups = tuple(RowGroup(20, 20, ()) for _ in range(num_units[file]))
            is_bad = file in bad
            staged.append(StagedFile(file, f"f{file}", None if is_bad else Footer(groups), "", "broken", BAD_ROWS))
        first_k = cursor.block_first_unit + len(units)
        units += plan_block(block, first_k, 0, staged, capacity=CAPACITY, stream=STREAM, seed=1)
    return units


class Stream:
    """Dispatcher and one decoder, and a trainer for each of ``ranks`` that takes as many units of a lane as it says."""

    def __init__(self, units: Sequence[m.Unit], num_lanes: int, ranks: int) -> None:
        self._dispatcher = Dispatcher(slots=64, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=100, lanes=num_lanes)
        self._units, self._ranks = units, ranks
        self.position = StreamPosition.start(num_lanes)
        self._act(self._dispatcher.handle("decoder", m.Hello(64), 0.0))
        self._act(self._dispatcher.add_units(units))
        self._act(self._dispatcher.end_plan())
        for rank in range(ranks):
            self._tell(rank, m.Attach(rank, ranks, PLAN, self.position.cursors))

    def take(self, lane: int, num_units: int) -> None:
        """Train the next units of a lane, one by one."""
        for _ in range(num_units):
            self._tell(lane % self._ranks, m.Want(lane, 1))

    def _tell(self, rank: int, message: m.Message) -> None:
        self._act(self._dispatcher.handle(f"trainer {rank}", message, 0.0))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send("decoder", m.Lease(lease, _, unit)):
                    layout = m.Layout(unit.rows, unit.rows, 1)
                    done = m.Done(unit.k, lease, layout, m.Tally(rows_read=unit.rows))
                    self._act(self._dispatcher.handle("decoder", done, 0.0))
                case Send(_, m.DeliveredUnit() as unit):
                    before = after = self.position
                    if unit.layout.events:
                        after = after.after_microbatch(unit, 0, unit.layout.events, unit.layout.particles)
                    self.position = before.merged([after.after_unit(unit).since(before)])
                    self._tell(unit.k % len(self.position.lanes) % self._ranks, m.Release(unit.k))
                case _:
                    assert not isinstance(action, Send) or isinstance(action.message, m.End), action


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5),
    st.sets(st.integers(0, 9)),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2)]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=8),
)
@example([(1, 2), (2, 2)], {1}, (2, 1), [(1, 1)])  # lane 1 is in a block whose first unit lane 0 has not taken
@example([(0, 2), (2, 2)], {1}, (2, 2), [(1, 1)])  # or behind one of a single unit
def test_a_lost_ledger_and_a_file_that_is_good_again_change_nothing_that_was_trained(
    blocks: list[tuple[int, int]], bad: set[int], lanes_and_ranks: tuple[int, int], taken: list[tuple[int, int]]
) -> None:
    num_units = [num for block in blocks for num in block]
    num_lanes, ranks = lanes_and_ranks
    units = planned(num_units, bad, m.Cursor())
    stream = Stream(units, num_lanes, ranks)
    for lane, num in taken:
        stream.take(lane % num_lanes, num)
    position = StreamPosition.model_validate_json(stream.position.model_dump_json())
    first = min(position.cursors, key=lambda cursor: (cursor.block, cursor.block_first_unit))
    again = {unit.k: unit for unit in planned(num_units, set(position.bad_files), first)}
    trained = [
        unit
        for unit in units
        if unit.k >= first.block_first_unit and unit.k < position.cursors[unit.k % num_lanes].unit
    ]
    for unit in trained:
        assert again[unit.k].parts == unit.parts
    # Each bad file is counted once, by the lane that has the first unit of its block.
    counted = [bad.file for bad in position.quarantined]
    assert len(counted) == len(set(counted))
    assert set(counted) <= set(position.bad_files)
    assert position.counters.events_quarantined == BAD_ROWS * len(counted)
    assert position.counters.adds_up()
