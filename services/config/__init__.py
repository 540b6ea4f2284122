"""The configuration tree: its root, and one branch for each service."""
