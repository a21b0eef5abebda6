"""What a login node can tell of its cluster, and the preset that follows from it."""
