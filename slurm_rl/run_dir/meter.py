"""Progress of long work: a line at intervals.

    with measure("model.safetensors", total=size) as advance:
        for chunk in chunks:
            advance(len(chunk))

    model.safetensors: 3.1 of 15.2 GB, 20%, 210 MB/s, 58 s left

Output goes to standard error. Quick work prints nothing: the first line comes after EVERY_S. A thread prints the lines,
so stalled work is visible.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

EVERY_S = 10.0
"""Interval of printed lines."""
_BYTES = ("B", "kB", "MB", "GB", "TB")

Advance = Callable[[float], None]
"""Adds to the amount done, from any thread; negative for work to repeat."""


@dataclass
class Work:
    """Long work and its progress."""

    what: str
    total: float | None = None
    unit: str = "B"
    """B for bytes; otherwise the word after the number."""
    done: float = 0.0

    def describe(self, seconds: float) -> str:
        """Return a line with amount, rate and remaining time, after so many seconds.

        >>> Work("weights", 4e9, done=1e9).describe(10.0)
        'weights: 1.0 of 4.0 GB, 25%, 100.0 MB/s, 30 s left'
        >>> Work("rows", unit="rows", done=1200).describe(60.0)
        'rows: 1,200 rows, 20 rows/s, 1 min 00 s so far'
        >>> Work("comparing").describe(20.0)
        'comparing: 20 s so far'
        """
        parts = [self._amount()] if self.done or self.total else []
        speed = self.done / seconds if seconds > 0 else 0.0
        if self.total:
            parts.append(f"{min(1.0, self.done / self.total):.0%}")
        if self.done:
            parts.append(f"{_scale(speed)}/s" if self.unit == "B" else f"{speed:,.3g} {self.unit}/s")
        if self.total and speed > 0:
            parts.append(f"{_clock(max(0.0, self.total - self.done) / speed)} left")
        else:
            parts.append(f"{_clock(seconds)} so far")
        return f"{self.what}: {', '.join(parts)}"

    def describe_end(self, seconds: float) -> str:
        return f"{self.what}: {f'{self._amount()} ' if self.done else ''}done in {_clock(seconds)}"

    def _amount(self) -> str:
        if self.unit != "B":
            return f"{self.done:,.0f}{f' of {self.total:,.0f}' if self.total else ''} {self.unit}"
        if not self.total or self.done >= self.total:
            return _scale(self.done)
        shown = _scale(self.total)
        size = 1000 ** _BYTES.index(shown.split()[1])
        return f"{self.done / size:,.1f} of {shown}" if size > 1 else f"{self.done:.0f} of {shown}"


def _scale(size: float) -> str:
    """Return the size in the unit that leaves it below a thousand.

    >>> _scale(999), _scale(15_230_000_000)
    ('999 B', '15.2 GB')
    """
    power = 0
    while size >= 1000 and power < len(_BYTES) - 1:
        size, power = size / 1000, power + 1
    return f"{size:,.1f} {_BYTES[power]}" if power else f"{size:.0f} B"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


@contextlib.contextmanager
def measure(
    what: str,
    total: float | None = None,
    *,
    unit: str = "B",
    poll: Callable[[], float] | None = None,
    is_shown: bool = True,
) -> Iterator[Advance]:
    """Show the progress of the work in this block.

    Args:
        what: label; control characters are removed.
        total: None: unknown.
        poll: returns the amount done, for work that does not report it.
        is_shown: False for all but one of several ranks with the same work.
    """
    plain = "".join(char if char.isprintable() else "?" for char in what)
    work, lock, over = Work(plain, total, unit), threading.Lock(), threading.Event()

    def advance(amount: float) -> None:
        with lock:
            work.done += amount

    if not is_shown:
        yield advance
        return
    start = time.monotonic()

    def look() -> None:
        while not over.wait(EVERY_S):
            if poll is not None:
                with contextlib.suppress(OSError):  # a file that is not there yet
                    work.done = poll()
            _write(work.describe(time.monotonic() - start))

    thread = threading.Thread(target=look, name="meter", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        over.set()
        thread.join()
    seconds = time.monotonic() - start
    if seconds >= EVERY_S:
        _write(work.describe_end(seconds))


def _write(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the reader has closed
        print(line, file=sys.stderr, flush=True)
