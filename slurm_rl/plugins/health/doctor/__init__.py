"""Is this node fit for a run? Looked at where a run's processes will be: in its container, with its environment.

`python -m slurm_rl doctor` starts `doctor.node` once on each node. That starts every row of `PROBES` as a process of
its own, so that one that hangs is named and not waited for, and writes what they found. Standard library alone, but for
what is looked at.
"""
