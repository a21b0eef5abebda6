"""The name by which a job of a Ray cluster finds its controller; a contract as those in slurm_rl/slurm are."""
