"""How good a checkpoint is: real beside generated events, as numbers, plots and a page."""
