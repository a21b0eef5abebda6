"""Runs Python that a language model wrote, which may be wrong, wasteful or hostile.

Each run is a fresh interpreter that gives up, for good and before it sees the code: every file but the
standard library (Landlock, or in older kernels a root folder of its own), every system call but those that
computing needs (seccomp: no socket, no new process or program, no signal, trace or limit on another process),
capabilities, and resources beyond its limits (CPU, address space, open files, output). It has a clean
environment, an empty home that it cannot write to, and the descriptors of its pipes alone. A deadline ends it
with SIGKILL; it also dies with the process that started it. Nothing of this needs root or a setting of the
cluster; where the kernel lacks seccomp, or both Landlock and user namespaces, `runs` says so and no code runs.

Verdicts cannot be forged from inside: see `runs` and `inside.check`.

What it does not protect from:

* a bug in the kernel, in the processor (side channels) or in CPython's own start;
* waste within the limits: a worker's CPU and memory (num_workers x memory_mb, twice for asserts) are used
  up to the deadline, and the number of threads is bounded by memory alone;
* learning what metadata tells: that a path exists, its size and owner, the kernel's version, the uid;
  also the time of day;
* code that passes the tests without solving the task: by knowing the expected values, for example because
  the prompt shows them, or because a row has too few tests;
* the checks of a data set: they run as confined as the code, but their verdict is believed.

Honest code is limited too: the standard library only, no files, no subprocesses (threads are fine).
"""
