"""Ranks: data-parallel trainers."""
