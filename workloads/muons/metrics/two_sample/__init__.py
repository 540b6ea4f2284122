"""Classifier two-sample tests."""
