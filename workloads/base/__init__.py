"""Parts shared by all workloads: interface, batch, step, report."""
