"""Simulator of muon bundles by hadronic interactions, decays and energy loss."""
