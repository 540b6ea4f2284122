"""`make bench-physics`: generated events of the models, compared with the simulator of their training data."""
