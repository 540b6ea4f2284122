"""Input files: listed, fetched, checked and read."""
