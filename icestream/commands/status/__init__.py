"""Command `icestream status`: state of a running or ended run, from the files of its run directory."""
