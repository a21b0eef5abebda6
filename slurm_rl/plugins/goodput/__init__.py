"""Where the GPU-time of a run went, and what follows from it: the goodput ledger, and times learned from saves."""
