"""Commands: one module or folder for each verb."""
