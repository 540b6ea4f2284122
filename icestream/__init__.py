"""Command line: commands and their shared code."""
