"""Functions on runs, for the CLI and for scripts: plan, check, start, watch, end.

Nothing here prints, ends the process, or installs a signal handler; errors are raised, see slurm_rl/errors.py.
"""
