"""One policy engine for every loss: model, packing, sharding, optimizer, checkpoint.

`checkpoint` and `folders` need the standard library alone; the rest needs torch.
"""
