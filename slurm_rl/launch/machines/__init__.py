"""Machines without Slurm: the counterpart of srun, over TCP between the `join` processes of the machines."""
