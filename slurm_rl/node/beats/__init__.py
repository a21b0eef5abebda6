"""Signs of life of every rank and engine: written on the node, judged there. Standard library alone."""
