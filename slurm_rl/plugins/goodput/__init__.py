"""The goodput ledger (GPU-time of a run by cause), and times learned from saves."""
