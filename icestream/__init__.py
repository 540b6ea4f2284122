"""The front door: commands and what they share."""
