"""`icestream run`: all services of a run on one machine, as child processes."""
