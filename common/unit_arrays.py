"""Arrays of one unit, wherever they are in memory, and their layout in a slot of the arena.

A slot has a header, then 64-byte aligned arrays at offsets given by three counts:

    header | event offsets (E + 1) | microbatch bounds (M + 1) | particle columns (P, ·) | event columns (E, ·) | source

Both sides compute the same offsets from (workload, counts), so that a descriptor carries counts and no addresses.
E events, P particles, M microbatches.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from common.errors import missing_extra
from common.messages import Layout
from common.schema import SOURCE_COLUMNS, Column, EventSchema, UnitArrays

if TYPE_CHECKING:
    import awkward


Array = npt.NDArray[np.generic]


def address(array: Array) -> int:
    """Address of an array's first number. Keep the array until the call that takes the address has returned."""
    return int(array.__array_interface__["data"][0])


def awkward_events(
    schema: EventSchema, offsets: Array, event_columns: Mapping[str, Array], particle_columns: Mapping[str, Array]
) -> awkward.Array:
    """Array of E records, with one field for each column: of (E, F) a record of its F fields, of (P, F) a list of such
    records. Raises BadInputError without the package `awkward`."""
    try:
        import awkward as ak
    except ImportError:
        raise missing_extra("An Awkward Array", "awkward") from None

    def records(name: str, values: Array) -> Any:
        fields = schema.column(name).fields
        columns = [ak.contents.NumpyArray(values[:, index].copy()) for index in range(len(fields))]
        return ak.contents.RecordArray(columns, list(fields), length=len(values))

    contents = {name: records(name, values) for name, values in event_columns.items()}
    starts = ak.index.Index64(offsets)
    contents |= {
        name: ak.contents.ListOffsetArray(starts, records(name, values)) for name, values in particle_columns.items()
    }
    return ak.Array(ak.contents.RecordArray(list(contents.values()), list(contents), length=len(offsets) - 1))


_ALIGNMENT_BYTES = 64
_HEADER = struct.Struct("<4sHH16sQQQQQ")  # magic, version, reserved, plan hash, k, lease, E, P, M
_MAGIC = b"ICES"
_VERSION = 1
_OFFSET_DTYPE = np.dtype("<i8")

OFFSETS = "offsets"
BOUNDS = "microbatch_bounds"


class SlotMismatch(Exception):
    """Slot content differs from the announced unit."""


@dataclass(frozen=True)
class SlotHeader:
    """Header of a filled slot: plan, unit, lease and counts."""

    plan_hash: str
    """Hash in 32 hexadecimal digits."""
    k: int
    lease: int
    layout: Layout


def event_columns(workload: EventSchema) -> tuple[Column, ...]:
    """Per-event columns in slot order, source columns last."""
    return (*workload.columns_per("event"), *SOURCE_COLUMNS)


def slot_bytes_needed(workload: EventSchema, layout: Layout) -> int:
    """Size in bytes of a unit with these counts."""
    end = _HEADER.size
    for _, dtype, shape in _arrays(workload, layout):
        end = _aligned(end) + dtype.itemsize * shape[0] * (shape[1] if len(shape) == 2 else 1)
    return _aligned(end)


def unit_arrays(slot: npt.NDArray[np.uint8], workload: EventSchema, layout: Layout) -> UnitArrays:
    """Views of a unit's arrays in ``slot`` ((bytes,) uint8). Raises SlotMismatch if they don't fit."""
    if slot_bytes_needed(workload, layout) > len(slot):
        raise SlotMismatch(f"{layout} needs {slot_bytes_needed(workload, layout)} bytes, the slot has {len(slot)}")
    views: dict[str, Array] = {}
    end = _HEADER.size
    for name, dtype, shape in _arrays(workload, layout):
        start = _aligned(end)
        end = start + dtype.itemsize * int(np.prod(shape))
        views[name] = slot[start:end].view(dtype).reshape(shape)
    return UnitArrays(
        offsets=views[OFFSETS],  # type: ignore[arg-type]
        microbatch_bounds=views[BOUNDS],  # type: ignore[arg-type]
        particle_columns={column.name: views[column.name] for column in workload.columns_per("particle")},
        event_columns={column.name: views[column.name] for column in event_columns(workload)},
    )


def content_digest(arrays: UnitArrays) -> str:
    """Digest of the events in the slot, their order and their microbatches; 32 hexadecimal digits.

    It compares two decodings of one unit. CRC-32 of the source columns: a cryptographic digest would take 3 % of the
    decoding, and a forged collision has no benefit.
    """
    digest = hashlib.blake2b(arrays.microbatch_bounds.tobytes(), digest_size=16)
    digest.update(arrays.offsets[arrays.microbatch_bounds].tobytes())
    for column in SOURCE_COLUMNS:
        digest.update(zlib.crc32(arrays.event_columns[column.name].data).to_bytes(4, "little"))
    return digest.hexdigest()


def write_header(slot: npt.NDArray[np.uint8], header: SlotHeader) -> None:
    """Write the slot's header: the decoder's last write."""
    layout = header.layout
    counts = (header.k, header.lease, layout.events, layout.particles, layout.microbatches)
    _HEADER.pack_into(slot.data, 0, _MAGIC, _VERSION, 0, bytes.fromhex(header.plan_hash), *counts)


def check_header(slot: npt.NDArray[np.uint8], expected: SlotHeader) -> None:
    """Raise SlotMismatch unless the slot holds exactly the announced unit."""
    magic, version, _, plan_hash, k, lease, events, particles, microbatches = _HEADER.unpack_from(slot.data, 0)
    if magic != _MAGIC or version != _VERSION:
        raise SlotMismatch(f"the slot of unit {expected.k} has no header of version {_VERSION}")
    found = SlotHeader(plan_hash.hex(), k, lease, Layout(events, particles, microbatches))
    if found != expected:
        raise SlotMismatch(f"the slot should hold {expected}, but holds {found}")


def _arrays(workload: EventSchema, layout: Layout) -> Iterator[tuple[str, np.dtype[np.generic], tuple[int, ...]]]:
    yield OFFSETS, _OFFSET_DTYPE, (layout.events + 1,)
    yield BOUNDS, _OFFSET_DTYPE, (layout.microbatches + 1,)
    for column in workload.columns_per("particle"):
        yield column.name, np.dtype(column.dtype), (layout.particles, len(column.fields))
    for column in event_columns(workload):
        yield column.name, np.dtype(column.dtype), (layout.events, len(column.fields))


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
