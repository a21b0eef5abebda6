"""One policy engine for every loss: model, packing, sharding, optimizer, checkpoint.

Only `checkpoint` works without torch.
"""
