"""Peak memory of a process tree.

Summed RSS counts a shared page once per process, which penalises trees of many processes. PSS divides a page by the
processes that map it, so its sum is the memory that the machine loses.
"""

import threading
from pathlib import Path


class MemoryMeter:
    """Watch a process tree in a thread until closed.

    Args:
        root: process id; processes that leave the tree after they were seen still count.
    """

    def __init__(self, root: int, every_s: float = 1.0) -> None:
        self.every_s, self.peak_bytes = every_s, 0
        self._seen: set[int] = {root}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> float:
        """Stop; return the peak in GB."""
        self._end.set()
        self._thread.join()
        return self.peak_bytes / 1e9

    def _watch(self) -> None:
        while not self._end.wait(self.every_s):
            parents = read_parents()
            self._seen &= parents.keys()
            grown = True
            while grown:
                children = {pid for pid, parent in parents.items() if parent in self._seen}
                grown = not children <= self._seen
                self._seen |= children
            self.peak_bytes = max(self.peak_bytes, sum(read_pss(pid) for pid in self._seen))


def read_parents() -> dict[int, int]:
    """Return parent by process id for all processes."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            found[int(folder.name)] = int(fields[1])
    return found


def read_pss(pid: int) -> int:
    """Return bytes; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
