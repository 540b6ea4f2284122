"""Health of the training."""
