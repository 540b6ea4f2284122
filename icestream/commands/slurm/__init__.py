"""Command `icestream slurm`: a job script for a run on several nodes."""
