"""Toy simulator of neutrino events with known truth."""
