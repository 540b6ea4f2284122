"""Modules that every room uses: units, slots, plan, messages, files (numpy, no torch)."""
