"""Fetcher: stages files, plans units, and leases them to decoders through the dispatcher."""
