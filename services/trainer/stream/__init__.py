"""Stream: units received, batches on the device, position, audit."""
