"""`icestream plan`: preview of a run."""
