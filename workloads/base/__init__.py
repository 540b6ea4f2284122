"""Parts of a training step that all workloads share."""
