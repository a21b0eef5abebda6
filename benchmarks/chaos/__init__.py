"""Seeded faults on a test Slurm while a run trains; what it lost, and whether every promise held.

    python -m benchmarks.chaos --seed 1 --minutes 3 --nodes 4 --every 20

schedule.py says what happens when, as a pure function of the seed; kinds.py is the table of faults, deeds.py one
function each; storm.py lets them fall; findings.py reads what is left. See docs/reference/chaos.md.
"""
