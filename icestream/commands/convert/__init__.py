"""`icestream convert`: files of any layout to the one that is read fastest."""
