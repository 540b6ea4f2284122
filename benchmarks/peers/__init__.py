"""icestream beside other loaders, on the same Parquet files."""
