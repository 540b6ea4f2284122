"""Command `icestream ray`: a run on several machines of a Ray cluster."""
