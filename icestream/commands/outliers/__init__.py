"""`icestream outliers`: merge of a run's outlier files."""
