"""Uses of random numbers in the workload `direction`. Pure."""

from __future__ import annotations

from workloads.base.random_streams import Purpose


class DirectionPurpose(Purpose):
    """See Purpose."""

    BOOTSTRAPS = "direction bootstraps"
    CALIBRATED_ANGLES = "direction calibrated angles"
    PICTURE_BOOTSTRAPS = "direction picture bootstraps"
