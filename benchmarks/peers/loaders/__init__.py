"""Loaders that are compared, each used as its own documentation recommends for Parquet.

A module each, with `Loader(job)`: iterated, it gives the batches of an epoch; `state_dict`, `load_state_dict` and
`close` as its users would call them. Where it does not read Parquet files as they are, `prepare(source, target)` as
well. No loader is imported here.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from benchmarks.peers.features import FEATURES


class Peer(NamedTuple):
    """Loader in words."""

    module: str
    title: str
    distributions: tuple[str, ...]
    """Packages that it needs, by their names for pip."""
    shuffle: str
    state: str
    conversion: str = ""
    """Product of `prepare`; empty if it reads Parquet as it is."""
    is_by_row: bool = False
    """True if the conversion handles an event at a time in Python."""
    has: tuple[str, ...] = FEATURES
    """Features that it has, or that its documentation has the user write as a part of her dataset."""

    @property
    def missing(self) -> list[str]:
        return [name for name in self.distributions if not version_of(name)]

    @property
    def versions(self) -> str:
        return ", ".join(f"{name} {version_of(name)}" for name in self.distributions)


def version_of(distribution: str) -> str:
    """Version of an installed package; empty if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


PEERS = (
    Peer(
        "icestream_api",
        "**icestream**",
        (),
        "permutation of units of some 65,000 events, from row groups of 64 files (`stream.block_files`)",
        "`stream.state_dict()`",
    ),
    Peer(
        "mosaic",
        "MosaicML Streaming",
        ("mosaicml-streaming",),
        "`py1e`, its default: events move within 4 million of them, here among all",
        "`StreamingDataLoader.state_dict()`",
        "MDS shards, all events rewritten",
        is_by_row=True,
        has=("mix", "transform", "column"),
    ),
    Peer(
        "hf_streaming",
        "HF datasets, streaming",
        ("datasets", "torchdata"),
        "buffer of 10,000 events in each worker, filled from 10 row groups in turn",
        "`state_dict()` of StatefulDataLoader, which holds that of the dataset",
    ),
    Peer(
        "hf_map",
        "HF datasets, map style",
        ("datasets", "torchdata"),
        "permutation of all events by random access",
        "`state_dict()` of StatefulDataLoader: place of its random sampler",
        "Arrow cache, all events rewritten",
    ),
    Peer(
        "torchdata_rows",
        "torchdata, own dataset",
        ("torchdata",),
        "permutation of four row groups at a time in each worker (as the user writes it)",
        "`state_dict()` of StatefulDataLoader, which holds that of the dataset",
    ),
    Peer(
        "ray_data",
        "Ray Data",
        ("ray",),
        "order of the files, then a buffer of 10,000 events",
        "none: the batches that were had are read again and skipped",
    ),
    Peer(
        "litdata_parquet",
        "LitData",
        ("litdata", "polars"),
        "`shuffle=True`: order of the files, and of the rows of each",
        "`StreamingDataLoader.state_dict()`",
        "index; the files in one folder",
        has=("mix", "transform", "column"),
    ),
    Peer(
        "spdl_pipeline",
        "SPDL",
        ("spdl", "pyarrow"),
        "permutation of four row groups at a time (as the user writes it)",
        "none: the batches that were had are read again and skipped",
    ),
    Peer(
        "energon",
        "Megatron Energon",
        ("megatron-energon",),
        "order of pieces of 100 events, then a buffer of 10,000 events in each worker",
        "`save_state_rank()` of its savable loader",
        "WebDataset (tar) and an index, all events rewritten",
        is_by_row=True,
    ),
)
