"""`icestream tensorboard`: event files of many runs, merged."""
