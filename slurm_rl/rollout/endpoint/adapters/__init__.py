"""Programs that play the environments of other packages, each in the virtual environment of that package: nothing of
slurm_rl is imported here. `env.agent_command=[/envs/theirs/bin/python, adapter:NAME, ...]` runs play_NAME.py."""
