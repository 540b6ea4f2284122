"""Input files: found, fetched, checked and read."""
