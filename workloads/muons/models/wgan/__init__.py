"""Conditional WGAN-GP that generates muon bundles."""
