"""Configuration tree: its root, and one branch for each service."""
