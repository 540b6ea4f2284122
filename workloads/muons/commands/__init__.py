"""Verbs of the muon workload."""
