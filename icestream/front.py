"""Services of the command line for verbs of workloads. Imports little: each command creates it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.held_out import Which
    from common.schema import EventSchema
    from workloads.base.front import FileEvents, FileSettings, Front, OrderedUnit


class FrontDoor:
    """Implementation of workloads.base.front.Front."""

    def file_settings(
        self, inputs: Sequence[str], *, toml: Path | None, assignments: Sequence[str], config_json: str = ""
    ) -> FileSettings:
        """Settings of files: see Front."""
        from services.config.root import load_config
        from workloads.base.front import FileSettings

        stored = json.loads(config_json or "{}")
        config = load_config(stored, toml=toml, assignments=assignments, flags={"input": tuple(inputs)})
        return FileSettings(
            config.input, config.source, config.stream, config.remote_access(), config.fetcher.cache_dir
        )

    def read_events(
        self,
        schema: EventSchema,
        settings: FileSettings,
        *,
        events: int,
        seed: int,
        trained_inputs: Sequence[str],
        held_out: float = 0.0,
        which: Which | None = None,
    ) -> AbstractContextManager[FileEvents]:
        """Events of files: see Front."""
        from icestream.reading.sample import sampled_events

        return sampled_events(
            schema,
            settings,
            events=events,
            seed=seed,
            trained_inputs=trained_inputs,
            held_out=held_out,
            which=which,
        )

    def each_unit(self, schema: EventSchema, settings: FileSettings) -> AbstractContextManager[Iterator[OrderedUnit]]:
        """Units of all files in order: see Front."""
        from icestream.reading.in_order import units_in_order

        return units_in_order(schema, settings)


if TYPE_CHECKING:
    _: Front = FrontDoor()  # click passes it untyped
