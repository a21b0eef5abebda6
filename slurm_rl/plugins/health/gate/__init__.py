"""The preflight: what every node of a job is asked before an attempt, how its answers are read, and who is left out."""
