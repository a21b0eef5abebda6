"""A language model as the reward, behind an OpenAI-compatible API."""
