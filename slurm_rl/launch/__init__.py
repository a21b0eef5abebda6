"""Ways to get machines for a run: a folder for each."""
