"""Commands of the direction workload."""
