"""Evaluation of a checkpoint: comparison of generated with real events."""
