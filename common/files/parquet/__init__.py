"""Parquet files: footer, pages, columns."""
