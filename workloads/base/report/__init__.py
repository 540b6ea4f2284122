"""Frame of an evaluation report."""
