"""Model `sets`."""
