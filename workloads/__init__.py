"""Workloads: what is learned from the stream, one self-contained folder each."""
