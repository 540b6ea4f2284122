"""What is learned from the stream: one folder for each workload."""
