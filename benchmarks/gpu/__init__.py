"""First hour on a GPU in one command: what works on it, how fast it is, and how far from the card's own limits."""
