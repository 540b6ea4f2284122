"""`icestream inspect`: content of a file, and settings to use it."""
