"""Prediction of the directions of events in files."""
