"""Suffixes accepted in directories; the format is detected from content."""

SUFFIXES = (".parquet", ".h5", ".hdf5")
