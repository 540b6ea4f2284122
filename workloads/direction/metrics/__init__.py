"""Metrics of predicted directions."""
