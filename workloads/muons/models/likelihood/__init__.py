"""Likelihood model of the muons: counts, what the muons of an event share, energies, positions."""
