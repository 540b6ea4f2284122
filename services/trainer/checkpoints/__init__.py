"""Checkpoints: snapshot, file, commit, roll back."""
