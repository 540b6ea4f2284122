"""`icestream bench`: speed of this machine."""
