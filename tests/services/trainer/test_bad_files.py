"""What a checkpoint knows of bad files, wherever its cursor is: enough to plan the same units without a ledger.

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
from services.trainer.position import StreamPosition
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
    """Dispatcher and one decoder, and trainers that all take the same units, each at its pace."""

    def __init__(self, units: Sequence[m.Unit], ranks: int) -> None:
        self._dispatcher = Dispatcher(slots=64, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=100)
        self.positions = [StreamPosition()] * ranks
        self._half_of: int | None = None
        self._act(self._dispatcher.handle("decoder", m.Hello(64)))
        self._act(self._dispatcher.add_units(units))
        self._act(self._dispatcher.end_plan())
        for rank in range(ranks):
            self._tell(rank, m.Attach(rank, ranks, PLAN, m.Cursor()))

    def take(self, num_units: int, half_of: int) -> None:
        """All trainers train the next units, the last first; of unit ``half_of`` no more than a half."""
        self._half_of = half_of
        for rank in reversed(range(len(self.positions))):
            for _ in range(num_units):
                self._tell(rank, m.Want(1))

    def _tell(self, rank: int, message: m.Message) -> None:
        self._act(self._dispatcher.handle(f"trainer {rank}", message))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send("decoder", m.Lease(lease, _, unit)):
                    layout = m.Layout(unit.rows, unit.rows, 2)
                    done = m.Done(unit.k, lease, layout, m.Tally(rows_read=unit.rows))
                    self._act(self._dispatcher.handle("decoder", done))
                case Send(trainer, m.DeliveredUnit() as unit):
                    rank = int(trainer.split()[1])
                    position = self.positions[rank]
                    if position.cursor.microbatch:  # inside of the unit that was taken by half
                        return
                    half = unit.layout.events // 2
                    after = position
                    if unit.layout.events:
                        after = position.after_microbatches(unit, 1, half, half)
                    if unit.k != self._half_of or not unit.layout.events:
                        if unit.layout.events:
                            after = after.after_microbatches(unit, 2, unit.layout.events - half, half)
                        after = after.after_unit(unit)
                        self._tell(rank, m.Release(unit.k))
                    self.positions[rank] = after
                case _:
                    assert not isinstance(action, Send) or isinstance(action.message, m.End), action


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5),
    st.sets(st.integers(0, 9)),
    st.integers(1, 3),
    st.integers(0, 20),
    st.integers(0, 20),
)
@example([(1, 2), (2, 2)], {1}, 2, 1, 0)  # a half of the first unit
@example([(0, 2), (2, 2)], {0, 1}, 1, 1, 9)  # a block of bad files only
def test_a_lost_ledger_and_a_file_that_is_good_again_change_nothing_that_was_trained(
    blocks: list[tuple[int, int]], bad: set[int], ranks: int, num_taken: int, half_of: int
) -> None:
    num_units = [num for block in blocks for num in block]
    units = planned(num_units, bad, m.Cursor())
    stream = Stream(units, ranks)
    stream.take(num_taken, half_of)
    assert len(set(stream.positions)) == 1, "all trainers are at the same place"
    position = StreamPosition.model_validate_json(stream.positions[0].model_dump_json())
    cursor = position.cursor
    again = {unit.k: unit for unit in planned(num_units, set(position.bad_files), cursor)}
    begun = [unit for unit in units if cursor.block_first_unit <= unit.k < cursor.unit + (cursor.microbatch > 0)]
    for unit in begun:
        assert again[unit.k].parts == unit.parts
    # Each bad file is counted once, with the first unit of its block that was trained.
    counted = [one.file for one in position.quarantined]
    assert len(counted) == len(set(counted))
    assert position.bad_files == tuple(sorted(counted))
    told = [one.file for unit in units if unit.k < cursor.unit + (cursor.microbatch > 0) for one in unit.quarantined]
    assert sorted(counted) == sorted(told)
    assert position.counters.events_quarantined == BAD_ROWS * len(counted)
    assert position.counters.adds_up()
