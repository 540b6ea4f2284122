"""`icestream inspect`: what stands in a file, and what to set so that it can be used."""
