"""Telemetry: status file, TensorBoard, W&B, validation."""
