"""Command `icestream node`: one of several nodes of a run."""
