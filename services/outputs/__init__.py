"""Outputs: checkpoints and TensorBoard files copied elsewhere, and back."""
