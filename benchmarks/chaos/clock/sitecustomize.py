"""Shift the clock of this node for our Python processes (no Linux namespace covers the time of day).

Python imports this file from PYTHONPATH at its start. $CHAOS_CLOCK is a folder; the file with the node's name holds
seconds to add. File times (the kernel's clock) and time.monotonic do not change.
"""

import os
import socket
import time
from pathlib import Path

_real, _real_ns = time.time, time.time_ns
_LOOK_S = 0.2
_path = Path(os.environ.get("CHAOS_CLOCK", "/nonexistent"), socket.gethostname())
_seen = [0.0, 0.0]


def _offset() -> float:
    if abs(_real() - _seen[0]) > _LOOK_S:
        try:
            _seen[1] = float(_path.read_text())
        except (OSError, ValueError):
            _seen[1] = 0.0
        _seen[0] = _real()
    return _seen[1]


if "CHAOS_CLOCK" in os.environ:
    time.time = lambda: _real() + _offset()
    time.time_ns = lambda: _real_ns() + int(_offset() * 1e9)
