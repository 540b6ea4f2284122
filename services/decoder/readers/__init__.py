"""Readers: source files to ragged columns, one module a layout."""
