"""The three kinds of process, the simulator beside them, and the command that starts them."""
