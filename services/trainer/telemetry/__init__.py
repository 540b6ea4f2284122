"""Metrics and their sinks."""
