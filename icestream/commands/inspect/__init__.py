"""`icestream inspect`: contents of a file, and settings to use it."""
