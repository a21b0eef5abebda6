"""An OpenAI-compatible endpoint in the run, which records the tokens of whatever program talks to it."""
