"""Choose the held-out rows, and order the training rows.

A prompt's rank is the SHA-256 of its messages, and the first ranks are held out: the same rows for every seed and task,
and nearly the same for a shuffled or longer file. The training order is a pure function of the position.

    PromptOrder(num_rows=3, seed=0).take(2, 3)
    position:   0 1 2 | 3 4 5 |         epochs of three rows, each a permutation of 0..2
    taken:          ^   ^ ^             the last of epoch 0, the first two of epoch 1
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from slurm_rl.errors import DataError

Row = TypeVar("Row")
DigestsOf = Callable[[Row], list[bytes]]


@dataclass(frozen=True, kw_only=True)
class Split(Generic[Row]):
    """The rows of a run; no prompt is both held out and trained on."""

    train: list[Row]
    held_out: list[Row]
    num_overlapping: int
    """Rows of data.train in neither list: their prompts are among the held-out ones."""


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Number of rows by use; the event `data/loaded`."""

    train: int
    held_out: int
    overlapping: int
    overlong: int

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            train=self.train + other.train,
            held_out=self.held_out + other.held_out,
            overlapping=self.overlapping + other.overlapping,
            overlong=self.overlong + other.overlong,
        )


def count_rows(split: Split[Row], num_train: int, num_held_out: int) -> RowCounts:
    """Count the rows of a split after overlong ones were left out; raise DataError if none are left."""
    for what, before, after in (
        ("to train on", split.train, num_train),
        ("held out (data.num_eval)", split.held_out, num_held_out),
    ):
        if before and not after:
            raise DataError(
                f"some rows {what} must be short enough",
                seen=f"all {len(before)} are left out with data.overlong_prompts=leave_out",
                action="raise data.max_prompt_tokens or supervised.max_tokens, or choose other data",
            )
    num_overlong = len(split.train) + len(split.held_out) - num_train - num_held_out
    return RowCounts(train=num_train, held_out=num_held_out, overlapping=split.num_overlapping, overlong=num_overlong)


def split_rows(
    rows: Sequence[Row], evals: Sequence[Row] | None, num_eval: int, digests_of: DigestsOf[Row]
) -> Split[Row]:
    """Hold out `num_eval` rows of `evals`, or of `rows` if `evals` is None.

    Rows with a prompt of any of `evals` are not trained on (compare https://arxiv.org/abs/2501.19393).

    Raises:
        DataError: nothing is left to train on.
    """
    digests = [digests_of(row) for row in rows]
    if evals is None:
        held_out = draw_rows(rows, digests, num_eval)
        taken = {digests_of(row)[-1] for row in held_out}
    else:
        of_evals = [digests_of(row) for row in evals]
        held_out = list(evals) if len(evals) <= num_eval else draw_rows(evals, of_evals, num_eval)
        taken = {found[-1] for found in of_evals}
    train = [row for row, found in zip(rows, digests, strict=True) if taken.isdisjoint(found)]
    if not train:
        raise _nothing_left(len(rows), len({found[-1] for found in digests}), None if evals else num_eval)
    return Split(
        train=train, held_out=held_out, num_overlapping=len(rows) - len(train) - (0 if evals else len(held_out))
    )


def digest_prompts(
    messages: Sequence[dict[str, Any]], answer: Sequence[dict[str, Any]] = (), folder: Path | None = None
) -> list[bytes]:
    """Return the SHA-256 of the messages before each turn of the assistant in `answer`, the row's own last.

    Without such a turn there is one digest, of all `messages`. An image counts by its path, relative to
    `folder` if it is below it, or by its bytes.
    """
    digest, found = hashlib.sha256(), []
    for number, message in enumerate([*messages, *answer]):
        # A conversation that the assistant begins has no prompt before that turn.
        if number and number >= len(messages) and message["role"] == "assistant":
            found.append(digest.digest())
        digest.update(_canonical(message, folder))
    return found or [digest.digest()]


def _canonical(message: dict[str, Any], folder: Path | None) -> bytes:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if folder is not None:
        parts = [_from_folder(part, f"{folder}/") for part in parts]
    # ASCII with all lengths implied by quotes, so that no text can pass for the next field.
    return _ENCODER.encode({**message, "content": parts}).encode()


def _from_folder(part: dict[str, Any], start: str) -> dict[str, Any]:
    image = part.get("image")
    return {**part, "image": image.removeprefix(start)} if isinstance(image, str) else part


def _name_bytes(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else repr(value)


_ENCODER = json.JSONEncoder(sort_keys=True, default=_name_bytes)
"""One for all rows: json.dumps would make one a row, which takes longer than the row."""


def draw_rows(rows: Sequence[Row], digests: Sequence[list[bytes]], count: int) -> list[Row]:
    """Return the rows of the first `count` ranks, in that order; of rows with equal prompts the first."""
    by_prompt: dict[bytes, Row] = {}
    for row, found in zip(rows, digests, strict=True):
        by_prompt.setdefault(found[-1], row)
    return [by_prompt[prompt] for prompt in sorted(by_prompt)[:count]]


def _nothing_left(num_rows: int, num_prompts: int, num_eval: int | None) -> DataError:
    seen = f"{num_rows} rows with {num_prompts} different prompts"
    if num_eval is None:
        return DataError(
            "data.train needs rows whose prompts are not in data.eval",
            seen=f"{seen}, all of them in data.eval",
            action="name other data in data.train or data.eval, or data.eval=null to hold rows of data.train out",
        )
    return DataError(
        f"data.num_eval = {num_eval} rows with different prompts are held out, so data.train needs more of them",
        seen=seen,
        action="lower data.num_eval, or name a file in data.eval",
    )


class PromptOrder:
    """An endless order over rows 0..num_rows-1; holds no state."""

    def __init__(self, num_rows: int, seed: int) -> None:
        if num_rows < 1:
            raise DataError(
                "the training data must have at least one row",
                seen=num_rows,
                action="check data.train and data.num_eval",
            )
        self._num_rows = num_rows
        self._seed = seed

    def take(self, position: int, count: int) -> list[int]:
        """Return the next `count` rows after `position` prompts; each epoch has every row exactly once."""
        assert position >= 0, position
        taken: list[int] = []
        while len(taken) < count:
            epoch, start = divmod(position + len(taken), self._num_rows)
            taken += _permutation(self._num_rows, self._seed, epoch)[start : start + count - len(taken)]
        return taken


@lru_cache(maxsize=4)
def _permutation(num_rows: int, seed: int, epoch: int) -> list[int]:
    """Return the order of one epoch; cached, since a step takes a small piece of it."""
    rows = list(range(num_rows))
    random.Random(f"epoch {seed} {epoch}").shuffle(rows)
    return rows
