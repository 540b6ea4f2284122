"""Toy physics with known truth, written in the production schema."""
