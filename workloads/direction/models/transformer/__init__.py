"""Model `transformer`."""
