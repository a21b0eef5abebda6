"""Health of nodes: preflight before an attempt, memory of bad nodes, and the command `doctor`."""
