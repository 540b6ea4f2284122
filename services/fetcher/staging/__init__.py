"""Staging: files on local disk within a budget, inspected before use."""
