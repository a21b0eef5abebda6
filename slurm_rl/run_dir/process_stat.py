"""Identity of a process of this machine, from /proc. Standard library only."""

from pathlib import Path


def machine_id() -> str:
    """Return the scope of a pid: the kernel's boot id and the pid namespace; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def started_at(pid: int) -> int | None:
    """Return the start time by the kernel's clock; None for a process that has ended, including zombies."""
    fields = read_stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name: state, parent, ...; [] for an ended process."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return []
    # The name is in parentheses and may contain spaces and parentheses.
    return stat.rpartition(")")[2].split()
