"""What workloads share: interface, batch, step, report."""
