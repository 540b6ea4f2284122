"""Parts of the command `icestream evaluate` that workloads share."""
