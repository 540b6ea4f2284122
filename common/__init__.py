"""Modules shared by all services and workloads: units, slots, plan, messages, files (numpy, no torch)."""
