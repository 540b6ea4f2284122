"""Staging of files to local disk."""
