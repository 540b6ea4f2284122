"""Evaluation of a checkpoint: real beside generated events."""
