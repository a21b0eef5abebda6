"""Environments: the base class, tools, and the processes that run them."""
