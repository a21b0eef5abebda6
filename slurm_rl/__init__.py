"""slurm_rl: reinforcement learning of language models on Slurm clusters, from one command."""

__version__ = "0.1.0"
