"""What is known against nodes: evidence, kept in the run directory and in a folder of the site."""
