"""What workloads share."""
