"""The configuration tree, and the branch of each service."""
