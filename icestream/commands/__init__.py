"""One module or folder for each verb: options here, work in the rooms below."""
