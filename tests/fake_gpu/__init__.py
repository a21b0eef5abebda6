"""A CUDA machine without GPUs, for tests: the CUDA builds of torch and vLLM run on host memory and CPU kernels.

`make fake-gpu` builds it. Unlike on a GPU, each call runs at once, so a missing synchronisation is not found; kernels
of a capture also run while they are captured; a kernel without a replacement raises an error with its name.
"""
