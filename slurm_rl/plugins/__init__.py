"""Optional parts of slurm_rl, attached to the core by hooks."""
