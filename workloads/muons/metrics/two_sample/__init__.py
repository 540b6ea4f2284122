"""Classifiers that try to tell generated from real events."""
