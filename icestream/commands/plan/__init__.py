"""`icestream plan`."""
