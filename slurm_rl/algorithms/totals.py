"""Adding up the numbers of micro-batches, ranks and minibatches: sums, and the largest for names that end in /max."""

from collections.abc import Mapping


def add_totals(into: dict[str, float], more: Mapping[str, float]) -> None:
    """Add `more` to `into` by key; keys may be new.

    >>> totals = {"loss": 1.0, "mismatch/max": 0.5}
    >>> add_totals(totals, {"loss": 2.0, "mismatch/max": 0.25})
    >>> totals
    {'loss': 3.0, 'mismatch/max': 0.5}
    """
    for name, value in more.items():
        if name not in into:
            into[name] = value
        else:
            into[name] = max(into[name], value) if is_maximum(name) else into[name] + value


def is_maximum(name: str) -> bool:
    return name.endswith("/max")
