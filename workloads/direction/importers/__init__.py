"""Importers of other experiments' files: Kaggle's and GraphNeT's."""
