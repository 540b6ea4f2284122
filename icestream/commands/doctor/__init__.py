"""Command `icestream doctor`: check of configuration, machine, inputs and token before a run."""
