"""How well generated muon bundles agree with real ones."""
