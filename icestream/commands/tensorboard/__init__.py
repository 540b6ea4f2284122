"""`icestream tensorboard`: merge of event files of many runs."""
