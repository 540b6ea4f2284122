"""One module or folder for each verb."""
