"""The field's own direction models, trained on the same stream as ours: see __main__.py."""
