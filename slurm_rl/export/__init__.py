"""The same run in the words of other systems. Pure: config in, text out."""
