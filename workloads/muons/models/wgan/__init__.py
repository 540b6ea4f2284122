"""Conditional WGAN-GP (docs/model.md)."""
