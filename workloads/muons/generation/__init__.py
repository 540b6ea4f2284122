"""Muon bundles from a trained checkpoint."""
