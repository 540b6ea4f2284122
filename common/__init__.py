"""Shared modules: units, slots, plan, messages, files (numpy, no torch)."""
