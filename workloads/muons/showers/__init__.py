"""Muon bundles of simulated air showers: hadronic interactions, cascades in air, and muons in ice."""
