"""Fetcher: files staged, units planned, leases dealt out by the dispatcher."""
