"""Muon bundles for given primaries: a conditional generator."""
