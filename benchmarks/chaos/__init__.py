"""Inject seeded faults into a run on a test Slurm; report lost time and violated guarantees.

    python -m benchmarks.chaos --seed 1 --minutes 3 --nodes 4 --every 20

schedule.py plans the faults as a pure function of the seed; kinds.py lists the fault kinds, implemented in inject.py;
storm.py injects them; findings.py evaluates the result. See docs/reference/chaos.md.
"""
