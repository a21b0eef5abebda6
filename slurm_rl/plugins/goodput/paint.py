"""Sum overlapping intervals by label, so that each second counts once. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from slurm_rl.plugins.goodput.nouns import Cause

Label = tuple[str, Cause | None]
"""Bucket and the cause that it is charged to."""


class Stripe(NamedTuple):
    """An interval of time with a label."""

    start: float
    end: float
    label: Label


def paint(start: float, end: float, base: Label, stripes: Iterable[Stripe]) -> dict[Label, float]:
    """Return the seconds of the window by label: `base`, covered by stripes, later ones over earlier ones.

    Stripes are clipped to the window; one that ends before it starts covers nothing. The values are not negative and
    sum to the window.

    >>> other, up, trained = [(name, None) for name in ("other", "bring_up", "trained")]
    >>> found = paint(0.0, 10.0, other, [Stripe(1.0, 6.0, up), Stripe(4.0, 12.0, trained), Stripe(9.0, 9.0, up)])
    >>> found[other], found[up], found[trained]
    (1.0, 3.0, 6.0)
    """
    clipped = [Stripe(max(start, stripe.start), min(end, stripe.end), stripe.label) for stripe in stripes]
    opens = sorted((stripe.start, -order) for order, stripe in enumerate(clipped) if stripe.start < stripe.end)
    cuts = sorted({end, *(at for stripe in clipped if stripe.start < stripe.end for at in stripe[:2])})
    found: dict[Label, float] = {}
    active: list[int] = []  # the newest coat first
    at, opened = start, 0
    for cut in cuts:
        if cut <= at:
            continue
        while opened < len(opens) and opens[opened][0] <= at:
            heapq.heappush(active, opens[opened][1])
            opened += 1
        while active and clipped[-active[0]].end <= at:
            heapq.heappop(active)
        label = clipped[-active[0]].label if active else base
        found[label] = found.get(label, 0.0) + cut - at
        at = cut
    return found
