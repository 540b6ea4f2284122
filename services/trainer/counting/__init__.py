"""Trainer without a model (`--model none`): it receives the stream like any other, and only counts it. No torch."""
