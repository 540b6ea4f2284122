"""Generators of muon bundles, and their common parts."""
