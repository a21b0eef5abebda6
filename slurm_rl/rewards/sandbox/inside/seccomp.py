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

_PLAIN = {
    "x86_64": """
        read 0 write 1 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12 rt_sigaction 13
        rt_sigprocmask 14 rt_sigreturn 15 pread64 17 pwrite64 18 readv 19 writev 20 access 21 pipe 22 select 23
        sched_yield 24 mremap 25 msync 26 mincore 27 madvise 28 dup 32 dup2 33 pause 34 nanosleep 35 getitimer 36
        alarm 37 setitimer 38 getpid 39 recvfrom 45 shutdown 48 getsockname 51 getpeername 52 getsockopt 55 exit 60
        wait4 61 uname 63 flock 73 fsync 74 fdatasync 75 ftruncate 77 getdents 78 getcwd 79 chdir 80 fchdir 81
        readlink 89 umask 95 gettimeofday 96 getrlimit 97 getrusage 98 sysinfo 99 times 100 getuid 102 getgid 104
        geteuid 107 getegid 108 getppid 110 getpgrp 111 getgroups 115 getresuid 118 getresgid 120 getpgid 121
        getsid 124 rt_sigpending 127 rt_sigtimedwait 128 rt_sigsuspend 130 sigaltstack 131 statfs 137 fstatfs 138
        getpriority 140 sched_getparam 143 sched_getscheduler 145 sched_get_priority_max 146
        sched_get_priority_min 147 arch_prctl 158 gettid 186 time 201 futex 202 sched_getaffinity 204
        epoll_create 213 getdents64 217 set_tid_address 218 restart_syscall 219 fadvise64 221 clock_gettime 228
        clock_getres 229 clock_nanosleep 230 exit_group 231 epoll_wait 232 epoll_ctl 233 waitid 247 openat 257
        newfstatat 262 readlinkat 267 faccessat 269 pselect6 270 ppoll 271 set_robust_list 273 get_robust_list 274
        epoll_pwait 281 timerfd_create 283 timerfd_settime 286 timerfd_gettime 287 eventfd2 290 epoll_create1 291
        dup3 292 pipe2 293 preadv 295 pwritev 296 getcpu 309 getrandom 318 membarrier 324 statx 332 rseq 334
        faccessat2 439 futex_waitv 449 open 2
    """,
    "aarch64": """
        read 63 write 64 close 57 fstat 80 lseek 62 mmap 222 mprotect 226 munmap 215 brk 214 rt_sigaction 134
        rt_sigprocmask 135 rt_sigreturn 139 pread64 67 pwrite64 68 readv 65 writev 66 sched_yield 124 mremap 216
        msync 227 mincore 232 madvise 233 dup 23 nanosleep 101 getitimer 102 setitimer 103 getpid 172 recvfrom 207
        shutdown 210 getsockname 204 getpeername 205 getsockopt 209 exit 93 wait4 260 uname 160 flock 32 fsync 82
        fdatasync 83 ftruncate 46 getcwd 17 chdir 49 fchdir 50 umask 166 gettimeofday 169 getrlimit 163
        getrusage 165 sysinfo 179 times 153 getuid 174 getgid 176 geteuid 175 getegid 177 getppid 173
        getgroups 158 getresuid 148 getresgid 150 getpgid 155 getsid 156 rt_sigpending 136 rt_sigtimedwait 137
        rt_sigsuspend 133 sigaltstack 132 statfs 43 fstatfs 44 getpriority 141 sched_getparam 121
        sched_getscheduler 120 sched_get_priority_max 125 sched_get_priority_min 126 gettid 178 futex 98
        sched_getaffinity 123 getdents64 61 set_tid_address 96 restart_syscall 128 fadvise64 223 clock_gettime 113
        clock_getres 114 clock_nanosleep 115 exit_group 94 epoll_ctl 21 waitid 95 openat 56 newfstatat 79
        readlinkat 78 faccessat 48 pselect6 72 ppoll 73 set_robust_list 99 get_robust_list 100 epoll_pwait 22
        timerfd_create 85 timerfd_settime 86 timerfd_gettime 87 eventfd2 19 epoll_create1 20 dup3 24 pipe2 59
        preadv 69 pwritev 70 getcpu 168 getrandom 278 membarrier 283 statx 291 rseq 293 faccessat2 439
        futex_waitv 449
    """,
}
"""Allowed whatever the arguments; files are Landlock's matter. System calls that this kernel lacks do no harm here."""

_CHECKED = {
    "x86_64": {"clone": 56, "clone3": 435, "kill": 62, "tgkill": 234, "prlimit64": 302, "fcntl": 72, "ioctl": 16,
               "socketpair": 53, "sendto": 44},
    "aarch64": {"clone": 220, "clone3": 435, "kill": 129, "tgkill": 131, "prlimit64": 261, "fcntl": 25, "ioctl": 29,
                "socketpair": 199, "sendto": 206},
}  # fmt: skip

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
    words = _PLAIN[machine].split()
    number = _CHECKED[machine]
    stream = 1
    program: list[_Ins] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _SYSCALL),
    ]
    for plain in words[1::2]:
        program += [(_EQUAL, 0, 1, int(plain)), (_RETURN, 0, 0, _ALLOW)]
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
