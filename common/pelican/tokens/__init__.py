"""Tokens of a federation: found, acquired, renewed."""
