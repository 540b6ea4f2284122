"""Reading of files outside of a run."""
