"""Data sets and models, fetched and checked on the login node; no torch."""
