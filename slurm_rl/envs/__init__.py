"""Worlds that answer a policy: what an environment is, and the processes that environments live in."""
