"""Trains a model on the stream of microbatches."""
