"""Ranks: trainers that learn together."""
