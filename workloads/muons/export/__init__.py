"""Export of a trained generator: torch.export, ONNX, model card."""
