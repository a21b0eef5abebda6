"""Machines without Slurm: what srun does for a run on Slurm, over TCP between `node` on each of them."""
