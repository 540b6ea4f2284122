"""`icestream convert`: files of any layout to the fastest one."""
