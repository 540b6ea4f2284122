"""Fit of the standardisation to the first suitable batch, common to all models.

E events, P particles.
"""

from __future__ import annotations

import torch

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.standardise import Standardise

MIN_PARTICLES_TO_FIT = 2


def fit_standardise(standardise: Standardise, batch: Batch, context: StepContext) -> bool:
    """Fit the parts of the standardisation that are not fitted yet and can be; True if any was.

    Conditions need an event, features two particles. Several ranks fit it together, to the batch of all ranks: else
    each would train on different features.
    """
    parts, fitted = batch.microbatches, False
    if not standardise.has_conditions and batch.total_events > 0:
        none = torch.empty((0, 4), device=context.device)
        primary_E4 = torch.cat([none, *(part.event_columns["primary"] for part in parts)])
        standardise.fit_conditions(primary_E4, batch.total_events, context.sum_over_ranks)
        fitted = True
    if not standardise.has_features and batch.total_particles >= MIN_PARTICLES_TO_FIT:
        none = torch.empty((0, 3), device=context.device)
        muons_P3 = torch.cat([none, *(part.particle_columns["muons"] for part in parts)])
        standardise.fit_features(muons_P3, batch.total_particles, context.sum_over_ranks)
        fitted = True
    return fitted
