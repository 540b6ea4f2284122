"""`icestream outliers`: outlier files of a run, merged."""
