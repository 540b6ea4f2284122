"""Supervisor: every service of a run on one machine, as child processes."""
