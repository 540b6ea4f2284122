"""Inventory of a run's files."""
