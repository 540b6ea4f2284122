"""Decodes leased units into slots of the arena."""
