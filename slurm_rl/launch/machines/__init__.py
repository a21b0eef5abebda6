"""Machines without Slurm: what srun does for a run on Slurm, over TCP between `join` on each of them."""
