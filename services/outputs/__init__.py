"""A run's checkpoints and TensorBoard files, copied to another place, and back."""
