"""A Pelican federation as a client sees it: discovery, listings, transfers. Used by the fetcher and for outputs."""
