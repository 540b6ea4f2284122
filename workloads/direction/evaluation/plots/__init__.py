"""Pictures of an evaluation."""
