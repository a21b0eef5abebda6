"""The guessing game of examples/ in real runs that are killed in the middle of it, and what must be there then."""
