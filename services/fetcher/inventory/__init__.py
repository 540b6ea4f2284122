"""Inventory: the frozen list of source files, range by range."""
