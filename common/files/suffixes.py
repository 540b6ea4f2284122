"""What is taken from a directory. What a file really is, its content tells."""

SUFFIXES = (".parquet", ".h5", ".hdf5")
