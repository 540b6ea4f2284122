"""Metrics of agreement between generated and real bundles."""
