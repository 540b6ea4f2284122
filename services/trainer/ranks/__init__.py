"""Trainers that learn together."""
