"""`icestream outliers`: what is done with the outliers of a run that is over, or pauses."""
