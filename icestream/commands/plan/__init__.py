"""`icestream plan`: a run without running it."""
