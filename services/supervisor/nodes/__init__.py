"""Several nodes of one run: how they meet, and how each notices that another one is gone."""
