"""Generators of muon bundles, and what they share."""
