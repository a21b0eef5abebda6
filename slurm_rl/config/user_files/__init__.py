"""Functions that the config names: `module:name` of ours, `file.py:name` of the user. Standard library alone."""
