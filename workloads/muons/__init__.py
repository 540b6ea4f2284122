"""Muon bundles: a conditional generator."""
