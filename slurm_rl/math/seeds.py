"""Every random number of a run comes from its seed and a place, never from a generator's history.

So nothing random has to be saved: step 37 samples the same whether the run began at step 0 or 30.
"""

from __future__ import annotations

import hashlib


def derive_seed(*place: int | str) -> int:
    """A seed in 0 .. 2^63 - 1 for a place such as (run seed, "rollout", step, engine)."""
    digest = hashlib.sha256(":".join(map(str, place)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
