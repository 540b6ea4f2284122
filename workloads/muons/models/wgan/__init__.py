"""Conditional WGAN-GP (docs/explanation/model.md)."""
