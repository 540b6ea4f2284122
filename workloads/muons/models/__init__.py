"""What the models of muon bundles share."""
