"""`make bench-physics`: what the models generate, measured against the simulator they were trained on."""
