"""The stream of batches."""
