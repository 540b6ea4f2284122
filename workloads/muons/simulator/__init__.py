"""Toy simulator of muon bundles with known truth."""
