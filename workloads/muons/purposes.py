"""Uses of random numbers in the workload `muons`. Pure."""

from __future__ import annotations

from workloads.base.random_streams import Purpose


class MuonPurpose(Purpose):
    """See Purpose."""

    # Training.
    PANEL = "muons panel"
    TASK_EVENTS = "muons task events"
    """Events that a task generates, as for the panel."""

    # Generation and export.
    GENERATION = "muons generation"
    GENERATED_PRIMARIES = "muons generated primaries"
    EXPORT_GENERATOR = "muons export generator"
    EXPORT_COUNTS = "muons export counts"
    """Inputs on which an exported function is checked."""

    # Evaluation.
    SIMULATED_EVENTS = "muons simulated events"
    SIMULATED_AGAIN = "muons simulated again"
    COUNT_PIT = "muons count pit"
    SPLITS = "muons splits"
    BOOTSTRAPS = "muons bootstraps"
    PAIRS_REAL = "muons real pairs"
    PAIRS_GENERATED = "muons generated pairs"
    SET_MUONS = "muons set muons"
    ATTENTION_EVENTS = "muons attention events"
    TEST_HALVES = "muons test halves"
    CLASSIFIER_WEIGHTS = "muons classifier weights"
    BATCHES = "muons classifier batches"
    PICTURE_BOOTSTRAPS = "muons picture bootstraps"
