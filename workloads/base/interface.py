"""A workload: what the stream carries, and the models that learn from it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.config import ConfigBranch
from common.schema import EventSchema


@dataclass(frozen=True)
class Model:
    """One model: the section `trainer.NAME` of the configuration, and its training."""

    summary: str
    """One line for `--help`."""
    config: type[ConfigBranch]
    training: str
    """`module:attribute` of its `Training`, imported by the trainer alone."""


@dataclass(frozen=True)
class Workload:
    """One folder of `workloads/`, as the engine sees it. Its module `workload` holds it as WORKLOAD.

    Its verbs, if it has any, are in its module `verbs` as VERBS.
    """

    name: str
    schema: EventSchema
    """Columns, where files hold them, and which values they may have."""
    models: Mapping[str, Model]
    """Models by name, unique among all workloads; the first is the default."""
    sample: str | None = None
    """`module:attribute` of `sample(folder, events, seed)`, which writes a file of simulated events for `icestream
    bench`; None without a simulator."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """`module:attribute` of its functions for Python by name; each calls the same code as the command.

    simulate(folder, *, events, files, seed, force, ...): writes simulated events.
    load(front, run, task_state, device) -> workloads.base.trained_model.TrainedModel.
    evaluate(front, say, *, checkpoint, inputs, ...) -> EvaluationReport: options as those of the command."""
    importers: Mapping[str, str] = field(default_factory=dict)
    """`module:attribute` of the `workloads.base.importer.Importer` of each foreign layout, by the layout's name."""

    @property
    def default_model(self) -> str:
        """Model that is trained if none is named."""
        return next(iter(self.models))
