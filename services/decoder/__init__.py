"""Decoder: leased units decoded into slots of the arena."""
