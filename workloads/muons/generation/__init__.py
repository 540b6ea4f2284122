"""Generation of muon bundles from a checkpoint."""
