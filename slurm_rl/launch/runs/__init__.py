"""What can be done with a run, for the verbs and for scripts alike: planned, checked, started, watched, ended.

Nothing here prints, ends the process, or installs a signal handler; what is wrong is raised, see slurm_rl/errors.py.
"""
