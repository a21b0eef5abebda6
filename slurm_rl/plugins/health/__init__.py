"""Health of nodes: preflight, doctor and the memory of bad nodes."""
