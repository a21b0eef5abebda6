"""Health of nodes: preflight before an attempt, memory of bad nodes, and the commands `doctor` and `nodes`."""
