"""Interpret the system call filter, which covers machines other than this one."""

import errno

import pytest

from slurm_rl.rewards.sandbox.inside.seccomp import build_filter

PID = 4711
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS

# From Linux's tables (arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h).
NUMBERS = {
    "x86_64": """
        read 0 openat 257 mmap 9 futex 202 clone 56 clone3 435 kill 62 tgkill 234 prlimit64 302 fcntl 72 ioctl 16
        socketpair 53 sendto 44 socket 41 connect 42 sendmsg 46 execve 59 execveat 322 fork 57 vfork 58 ptrace 101
        process_vm_readv 310 pidfd_open 434 pidfd_getfd 438 pidfd_send_signal 424 io_uring_setup 425 memfd_create
        319 chmod 90 fchmodat 268 utimensat 280 mount 165 unshare 272 setns 308 bpf 321 prctl 157 setsid 112 setpgid
        109 truncate 76 unlinkat 263 shmget 29 keyctl 250 rt_sigqueueinfo 129 tkill 200 setpriority 141
        sched_setaffinity 203 timer_create 222
    """,
    "aarch64": """
        read 63 openat 56 mmap 222 futex 98 clone 220 clone3 435 kill 129 tgkill 131 prlimit64 261 fcntl 25 ioctl 29
        socketpair 199 sendto 206 socket 198 connect 203 sendmsg 211 execve 221 execveat 281 ptrace 117
        process_vm_readv 270 pidfd_open 434 pidfd_getfd 438 pidfd_send_signal 424 io_uring_setup 425 memfd_create
        279 fchmodat 53 utimensat 88 mount 40 unshare 97 setns 268 bpf 280 prctl 167 setsid 157 setpgid 154 truncate
        45 unlinkat 35 shmget 194 keyctl 219 rt_sigqueueinfo 138 tkill 130 setpriority 140 sched_setaffinity 122
        timer_create 107
    """,
}
"""Alternating names and numbers."""
OPEN = ("read", "openat", "mmap", "futex")
CHECKED = ("clone", "clone3", "kill", "tgkill", "prlimit64", "fcntl", "ioctl", "socketpair", "sendto")


def number_of(machine: str, name: str) -> int:
    words = NUMBERS[machine].split()
    return int(words[words.index(name) + 1])


def judge(machine: str, name: str, *args: int, arch: int | None = None) -> int:
    """Return the filter's verdict on a call."""
    words = [number_of(machine, name), ARCH[machine] if arch is None else arch, 0, 0]
    for arg in (*args, *[0] * (6 - len(args))):
        words += [arg & 0xFFFFFFFF, arg >> 32]
    program, at, value = build_filter(machine, PID), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x20:
            value = words[operand // 4]
        elif code == 0x54:
            value &= operand
        elif code == 0x06:
            return operand
        else:
            holds = value == operand if code == 0x15 else bool(value & operand)
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCH)
def test_unlisted_calls_are_refused(machine: str) -> None:
    refused = [name for name in NUMBERS[machine].split()[::2] if name not in OPEN + CHECKED]
    assert {name: judge(machine, name) for name in refused} == dict.fromkeys(refused, EPERM)
    assert {judge(machine, name) for name in OPEN} == {ALLOW}
    assert judge(machine, "read", arch=0x40000003) == KILL  # 32-bit calls have other numbers
    assert len(build_filter(machine, PID)) < 4096


@pytest.mark.parametrize("machine", ARCH)
@pytest.mark.parametrize(
    ("name", "args", "verdict"),
    [
        ("clone", (0x3D0F00,), ALLOW),  # a thread of glibc
        ("clone", (0x1200011,), EPERM),  # fork
        ("clone", (0x3D0F00 | 0x10000000,), EPERM),  # a user namespace
        ("clone3", (), ENOSYS),
        ("kill", (PID, 9), ALLOW),
        ("kill", (PID + 1, 9), EPERM),
        ("kill", (0xFFFFFFFF, 9), EPERM),
        ("kill", (0, 9), EPERM),
        ("tgkill", (PID, PID + 3, 6), ALLOW),
        ("tgkill", (1, 1, 9), EPERM),
        ("prlimit64", (0, 7), ALLOW),
        ("prlimit64", (PID + 1, 7), EPERM),
        ("fcntl", (1, 3), ALLOW),
        ("fcntl", (1, 8, 1), EPERM),  # F_SETOWN
        ("fcntl", (1, 10, 9), EPERM),  # F_SETSIG
        ("fcntl", (1, 15), EPERM),  # F_SETOWN_EX
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),  # TIOCSTI
        ("ioctl", (0, 0x8901), EPERM),  # FIOSETOWN
        ("socketpair", (1, 1 | 0o2000000), ALLOW),
        ("socketpair", (1, 2), EPERM),
        ("sendto", (3, 0, 1, 0, 0), ALLOW),
        ("sendto", (3, 0, 1, 0, 1 << 40), EPERM),
        ("sendto", (3, 0, 1, 0, 0x1000), EPERM),
    ],
)
def test_arguments_decide(machine: str, name: str, args: tuple[int, ...], verdict: int) -> None:
    assert judge(machine, name, *args) == verdict
