"""Models of the direction of neutrinos."""
