"""Pure tensor functions: rewards to advantages, logits to logprobs, logprobs to loss, sequences to rows.

Nothing here knows a model, a worker or a config object; it needs torch and numpy alone.
"""
