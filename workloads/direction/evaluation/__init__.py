"""Evaluation of predicted directions: events, report, pictures."""
