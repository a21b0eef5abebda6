"""One rank of a node in the fabric test: `python -m slurm_rl.plugins.health.gate.fabric_rank <JSON>`.

A question a line, an answer a line. What it does is what `doctor` does, and so are its sizes.

    {"do": "compute"}                                        -> {"tflops": 640.1, "is_same": true, ...}
    {"do": "open", "address": "10.0.0.1"}                    -> {"port": 41234}
    {"do": "reduce", "address": ..., "port": ..., "first": 8, "world": 16}  -> {"gb_s": 47.3, "is_right": true}
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from slurm_rl.node.bound_torchrun import open_store
from slurm_rl.plugins.health.doctor.rank import GROUP_S, Words, all_reduce, multiply, open_torch


class Rank:
    """What it keeps between two questions."""

    def __init__(self, words: Words) -> None:
        self.words, self._number = words, 0
        self._store: Any = None
        self.device = open_torch(words)

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        deeds: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "compute": self.compute,
            "open": self.open,
            "reduce": self.reduce,
        }
        return deeds[asked["do"]](asked)

    def compute(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The matmul, and the all-reduce within the node where it has several ranks."""
        found = {**multiply(self.words), "gpu": str(self.device["name"]), "num_ranks": self.words.ranks_per_node}
        if self.words.ranks_per_node > 1:
            import torch.distributed as dist

            self._number += 1
            store = dist.FileStore(f"{self.words.folder}/store-{self._number}", self.words.ranks_per_node)
            said = all_reduce(self.words, store, self.words.local_rank, self.words.ranks_per_node)
            found |= {"within_gb_s": said["gb_s"], "is_right": said["is_right"]}
        return found

    def open(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The store of the next reduce, of the first rank of its first node."""
        if self.words.local_rank:
            return {}
        options = {"wait_for_workers": False}
        self._store = open_store(asked["address"], 0, None, True, timedelta(seconds=GROUP_S), **options)
        return {"port": int(self._store.port)}

    def reduce(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Over all ranks of some nodes; this node's begin at `first`."""
        rank, world = asked["first"] + self.words.local_rank, asked["world"]
        store, self._store = self._store, None
        if rank or store is None:
            store = open_store(
                asked["address"], asked["port"], None, False, timedelta(seconds=GROUP_S), wait_for_workers=False
            )
        said = all_reduce(self.words, store, rank, world)
        return {"gb_s": said["gb_s"], "is_right": said["is_right"]}


def main(text: str) -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print, too
    rank: Rank | None = None
    for line in sys.stdin:
        try:
            rank = rank or Rank(Words(**json.loads(text)))
            found = rank.answer(json.loads(line))
        except Exception as error:  # of torch, a driver or a library below it
            first = (str(error).strip().splitlines() or [""])[0]
            found = {"error": f"{type(error).__name__}: {first}"[:300]}
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
