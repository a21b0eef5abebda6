"""The flight recorder of torch.distributed, in words. Pure but for reading a file. Standard library alone.

Each rank keeps its last collectives (TORCH_NCCL_TRACE_BUFFER_SIZE) and writes them, pickled, to
`nccl_trace_rank_<rank>` of the run directory when its monitor is asked to. torch's own reader is
torch/distributed/flight_recorder; this one answers one question: who has not come to the collective that the others
wait in.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "nccl_trace_rank_"
NONE_OF_GLOO = "gloo, which CPU ranks talk by, leaves no flight recorder"
NONE_CAME = "the flight recorder of NCCL or RCCL was asked for, but no rank has written it"


@dataclass(frozen=True)
class Call:
    """A collective as one rank saw it."""

    group: str
    """Of processes, as torch describes it: default_pg."""
    number: int
    """Its place among the collectives of that group."""
    kind: str
    """all_reduce, ..."""
    sizes: tuple[tuple[int, ...], ...]
    is_done: bool


class _Plain(pickle.Unpickler):
    """Numbers, text, lists and tables alone: a file that all who see the disk may write must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a flight recorder's file holds plain values, not {module}.{name}")


def read_dump(content: bytes) -> dict[str, Any]:
    """What a rank wrote; empty where it cannot be read."""
    try:
        found = _Plain(io.BytesIO(content)).load()
    except Exception:  # a half file may raise anything
        return {}
    return found if isinstance(found, dict) else {}


def read_dumps(folder: Path, since: float) -> dict[int, dict[str, Any]]:
    """Rank -> its dump, of the files that are newer than `since` (seconds since 1970)."""
    found = {}
    for path in folder.glob(f"{PREFIX}*"):
        number = re.fullmatch(rf"{PREFIX}(\d+)", path.name)
        if number and path.stat().st_mtime >= since and (dump := read_dump(path.read_bytes())):
            found[int(number[1])] = dump
    return found


def parse_calls(dump: Mapping[str, Any]) -> list[Call]:
    """The collectives of a dump, oldest first; without sends between two ranks."""
    found = []
    for entry in dump.get("entries", []):
        if entry.get("is_p2p"):
            continue
        _, _, kind = str(entry["profiling_name"]).partition(":")
        # gloo's records never change their state, but are retired when they are done.
        is_done = bool(entry["state"] == "completed" or entry.get("retired"))
        sizes = tuple(tuple(size) for size in entry["input_sizes"])
        found.append(Call(str(entry["process_group"][1]), int(entry["collective_seq_id"]), kind, sizes, is_done))
    return found


def tell_verdict(dumps: Mapping[int, Mapping[str, Any]]) -> str:
    """One sentence: the first collective that somebody waits in, and who is not there."""
    calls = {rank: parse_calls(dump) for rank, dump in sorted(dumps.items())}
    open_calls = {
        rank: first for rank, of in calls.items() if (first := next((call for call in of if not call.is_done), None))
    }
    if not open_calls:
        return "flight recorder: every collective that was called is done, so they wait for something else"
    group = next(iter(open_calls.values())).group
    number = min(call.number for call in open_calls.values() if call.group == group)
    there = {rank: call for rank, of in calls.items() for call in of if call.group == group and call.number == number}
    [what, *others] = dict.fromkeys((call.kind, call.sizes) for call in there.values())
    name = f"{what[0]} number {number} of {group}"
    if others:
        told = [
            f"ranks {_list([r for r, c in there.items() if (c.kind, c.sizes) == one])}: {_show(one)}"
            for one in [what, *others]
        ]
        return f"flight recorder: ranks call different things as number {number} of {group}: {'; '.join(told)}"
    waiting = [rank for rank, call in there.items() if not call.is_done]
    if missing := [rank for rank in calls if rank not in there]:
        return f"flight recorder: rank {_list(missing)} has not come to {name}, in which rank {_list(waiting)} waits"
    return f"flight recorder: all ranks are in {name}, and rank {_list(waiting)} never got through: look at the network"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _show(what: tuple[str, tuple[tuple[int, ...], ...]]) -> str:
    return f"{what[0]} of {', '.join('x'.join(map(str, size)) or 'a number' for size in what[1])}"
