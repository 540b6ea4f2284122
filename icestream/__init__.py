"""The front door: what a person types and imports."""
