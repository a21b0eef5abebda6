"""The site wizard: inspect a login node and write the preset of its cluster."""
