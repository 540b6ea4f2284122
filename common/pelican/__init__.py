"""Client of a Pelican federation: discovery, listings, transfers."""
