"""Speed: profile, replay ceiling, memory, GPU load."""
