"""Runs in containers, for real: `make test-compose` (docs/how-to/docker.md)."""
