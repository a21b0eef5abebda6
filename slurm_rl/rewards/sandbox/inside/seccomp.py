"""System call filter: an allow list for a computing Python; all others fail with EPERM.

Left out on purpose: everything that starts a process or a program, opens a socket, signals, traces or limits another
process, changes owner, mode or times of a file (not covered by Landlock), or leaves something in the kernel (System V
memory, message queues, keys). Threads are allowed.

The filter is classic BPF, see Linux' Documentation/userspace-api/seccomp_filter.rst. Standard library only: this file
also runs in the sandboxed interpreter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_LOAD, _EQUAL, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SYSCALL, _ARCH, _ARGS = 0, 4, 16
"""Offsets in struct seccomp_data; argument i is at _ARGS + 8 i, its low half first."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER = 1

_PLAIN = """
    read 0 63 write 1 64 close 3 57 fstat 5 80 lseek 8 62 mmap 9 222 mprotect 10 226 munmap 11 215 brk 12 214
    rt_sigaction 13 134 rt_sigprocmask 14 135 rt_sigreturn 15 139 pread64 17 67 pwrite64 18 68 readv 19 65
    writev 20 66 sched_yield 24 124 mremap 25 216 msync 26 227 mincore 27 232 madvise 28 233 dup 32 23
    nanosleep 35 101 getitimer 36 102 setitimer 38 103 getpid 39 172 recvfrom 45 207 shutdown 48 210
    getsockname 51 204 getpeername 52 205 getsockopt 55 209 exit 60 93 wait4 61 260 uname 63 160 flock 73 32
    fsync 74 82 fdatasync 75 83 ftruncate 77 46 getcwd 79 17 chdir 80 49 fchdir 81 50 umask 95 166
    gettimeofday 96 169 getrlimit 97 163 getrusage 98 165 sysinfo 99 179 times 100 153 getuid 102 174 getgid 104 176
    geteuid 107 175 getegid 108 177 getppid 110 173 getgroups 115 158 getresuid 118 148 getresgid 120 150
    getpgid 121 155 getsid 124 156 rt_sigpending 127 136 rt_sigtimedwait 128 137 rt_sigsuspend 130 133
    sigaltstack 131 132 statfs 137 43 fstatfs 138 44 getpriority 140 141 sched_getparam 143 121
    sched_getscheduler 145 120 sched_get_priority_max 146 125 sched_get_priority_min 147 126 gettid 186 178
    futex 202 98 sched_getaffinity 204 123 getdents64 217 61 set_tid_address 218 96 restart_syscall 219 128
    fadvise64 221 223 clock_gettime 228 113 clock_getres 229 114 clock_nanosleep 230 115 exit_group 231 94
    epoll_ctl 233 21 waitid 247 95 openat 257 56 newfstatat 262 79 readlinkat 267 78 faccessat 269 48
    pselect6 270 72 ppoll 271 73 set_robust_list 273 99 get_robust_list 274 100 epoll_pwait 281 22
    timerfd_create 283 85 timerfd_settime 286 86 timerfd_gettime 287 87 eventfd2 290 19 epoll_create1 291 20
    dup3 292 24 pipe2 293 59 preadv 295 69 pwritev 296 70 getcpu 309 168 getrandom 318 278 membarrier 324 283
    statx 332 291 rseq 334 293 faccessat2 439 439 futex_waitv 449 449
"""
"""Name and number on x86_64 and aarch64 of system calls that are allowed whatever the arguments; files are Landlock's
matter. System calls that this kernel lacks do no harm here."""
_ONLY_X86 = """
    stat 4 lstat 6 poll 7 access 21 pipe 22 select 23 dup2 33 pause 34 alarm 37 getdents 78 readlink 89 getpgrp 111
    arch_prctl 158 time 201 epoll_create 213 epoll_wait 232 open 2
"""
"""Name and number of those that aarch64 never had."""
_CHECKED = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "socketpair": (53, 199),
    "sendto": (44, 206),
}
"""Numbers on x86_64 and aarch64 of those whose arguments decide."""

_CLONE_THREAD, _CLONE_NAMESPACES = 0x00010000, 0x7E020000
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
"""DUPFD to SETLKW and DUPFD_CLOEXEC; not F_SETOWN and F_SETSIG, by which a pipe sends any signal to any process."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS (isatty), window size, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; not FIOSETOWN (as F_SETOWN), not TIOCSTI."""

_Ins = tuple[int, int, int, int]


def install_filter() -> None:
    """Put the filter on this process, after no_new_privs; raise OSError if kernel or machine does not support it."""
    machine = os.uname().machine
    if machine not in _AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine}")
    code = b"".join(struct.pack("HBBI", *ins) for ins in build_filter(machine, os.getpid()))
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    refused = "the kernel refused the system call filter"
    checked(LIBC.syscall(_SECCOMP[machine], _SET_MODE_FILTER, 0, program), refused)


def build_filter(machine: str, pid: int) -> list[_Ins]:
    """Return the instructions (code, jump if true, jump if false, operand); the code may signal only `pid`, its own."""
    place = ("x86_64", "aarch64").index(machine)
    plain = [*_PLAIN.split()[place + 1 :: 3], *([] if place else _ONLY_X86.split()[1::2])]
    number = {name: numbers[place] for name, numbers in _CHECKED.items()}
    stream = 1
    program: list[_Ins] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _SYSCALL),
    ]
    for allowed in map(int, plain):
        program += [(_EQUAL, 0, 1, allowed), (_RETURN, 0, 0, _ALLOW)]
    program += _case(number["fcntl"], _one_of(1, _FCNTL))
    program += _case(number["ioctl"], _one_of(1, _IOCTL))
    program += _case(number["kill"], _one_of(0, (pid,)))
    program += _case(number["tgkill"], _one_of(0, (pid,)))
    program += _case(number["prlimit64"], _one_of(0, (0, pid)))
    program += _case(
        number["clone"],
        [
            (_LOAD, 0, 0, _ARGS),
            (_ANY_BIT, 0, 2, _CLONE_THREAD),
            (_ANY_BIT, 1, 0, _CLONE_NAMESPACES),
            (_RETURN, 0, 0, _ALLOW),
        ],
    )
    # glibc then takes clone, whose flags a filter can see.
    program += _case(number["clone3"], [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)])
    # asyncio wakes itself by a stream pair; a datagram one could be sent to any socket of the machine.
    program += _case(number["socketpair"], [(_LOAD, 0, 0, _ARGS + 8), (_MASK, 0, 0, 0xF), *_is(stream)])
    program += _case(
        number["sendto"],
        [(_LOAD, 0, 0, _ARGS + 8 * 4), (_EQUAL, 0, 3, 0), (_LOAD, 0, 0, _ARGS + 8 * 4 + 4), *_is(0)],
    )
    return [*program, _DENY]


_DENY: _Ins = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


def _case(number: int, body: list[_Ins]) -> list[_Ins]:
    """Run `body` for the system call `number`, and refuse the call if it does not allow it."""
    return [(_EQUAL, 0, len(body) + 1, number), *body, _DENY]


def _one_of(arg: int, values: tuple[int, ...]) -> list[_Ins]:
    checks = [ins for value in values for ins in _is(value)]
    return [(_LOAD, 0, 0, _ARGS + 8 * arg), *checks]


def _is(value: int) -> list[_Ins]:
    return [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]


LIBC = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result
