"""Pictures of an evaluation: what physicists look at first."""
