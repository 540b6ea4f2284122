"""Checkpoints: snapshot, file, commit, rollback."""
