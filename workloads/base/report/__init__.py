"""Frame of an evaluation report: table, page, verdict, thresholds."""
