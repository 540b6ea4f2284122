"""Exact-likelihood model of the muons: counts, what an event shares, energies, positions."""
