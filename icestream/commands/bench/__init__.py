"""`icestream bench`."""
