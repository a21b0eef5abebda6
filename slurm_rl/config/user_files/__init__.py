"""Load and inspect functions that the config names: `module:name` of this package, `file.py:name` of the user."""
