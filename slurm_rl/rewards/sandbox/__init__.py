"""Run Python that a language model wrote, which may be wrong, wasteful or hostile.

Each run is a fresh interpreter. Before it reads the code it gives up for good: every file but the standard library
(Landlock, or a mount namespace in older kernels), every system call that computing does not need (seccomp: no sockets,
processes, programs, signals), capabilities, and resources beyond its limits. It has a clean environment, an empty
read-only home and only the descriptors of its pipes. A deadline ends it with SIGKILL; it also dies with its parent. It
needs neither root nor a setting of the cluster. Without seccomp, or without Landlock and user namespaces, no code runs.

Verdicts cannot be forged from inside: see `runs` and `inside.check`.

Limits of the protection:

* bugs in the kernel, the processor (side channels) or CPython's start;
* waste within the limits: a worker's CPU and memory until the deadline, and threads up to the memory;
* metadata: existence, size and owner of paths, the kernel's version, the uid, the time;
* code that knows the expected values, for example from the prompt;
* the checks of a data set are confined like the code, but their verdict is believed.

Honest code is limited too: the standard library only, no files, no subprocesses (threads are fine).
"""
