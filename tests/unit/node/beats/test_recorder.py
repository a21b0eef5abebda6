"""The flight recorder in words: torch's own recordings, and what else its format may hold."""

from __future__ import annotations

import copy
import json
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.node.beats.recorder import PREFIX, read_dump, read_dumps, tell_verdict

SAMPLES = Path(__file__).parents[3] / "samples"


@pytest.fixture
def dumps() -> dict[int, dict[str, Any]]:
    """Recorded by torch 2 over gloo: both ranks reduced, rank 0 alone called a broadcast."""
    found = {}
    for rank in (0, 1):
        dump = json.loads((SAMPLES / f"flight-recorder.gloo-rank{rank}.json").read_text())
        for entry in dump["entries"]:
            entry["process_group"] = tuple(entry["process_group"])
        found[rank] = dump
    # Rank 1 was recorded behind its reduction, rank 0 in its thread before.
    found[0]["entries"][0]["retired"] = True
    return found


def test_who_has_not_come_is_named(dumps: dict[int, dict[str, Any]]) -> None:
    said = tell_verdict(dumps)
    assert said == ("flight recorder: rank 1 has not come to broadcast number 2 of default_pg, in which rank 0 waits")


def test_all_of_them_in_one_collective_blames_the_network(dumps: dict[int, dict[str, Any]]) -> None:
    dumps[1]["entries"].append(copy.deepcopy(dumps[0]["entries"][1]))
    assert "look at the network" in tell_verdict(dumps)


def test_different_collectives_are_told_with_their_sizes(dumps: dict[int, dict[str, Any]]) -> None:
    other = copy.deepcopy(dumps[0]["entries"][1])
    dumps[1]["entries"].append({**other, "profiling_name": "nccl:all_gather", "input_sizes": [[7, 2]]})
    said = tell_verdict(dumps)
    assert "ranks 0: broadcast of 3" in said and "ranks 1: all_gather of 7x2" in said


def test_nothing_open_says_so(dumps: dict[int, dict[str, Any]]) -> None:
    dumps[0]["entries"][1]["state"] = "completed"
    assert "is done" in tell_verdict(dumps)


def test_files_are_read_without_running_what_they_hold(tmp_path: Path, dumps: dict[int, dict[str, Any]]) -> None:
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (marker.write_text, ("x",))

    whole = pickle.dumps(dumps[0])
    (tmp_path / f"{PREFIX}0").write_bytes(whole)
    (tmp_path / f"{PREFIX}1").write_bytes(whole[:100])
    (tmp_path / f"{PREFIX}2").write_bytes(pickle.dumps(Evil()))
    (tmp_path / f"{PREFIX}x").write_bytes(whole)
    assert read_dumps(tmp_path, since=0.0) == {0: dumps[0]}
    assert read_dumps(tmp_path, since=4e9) == {}
    assert not marker.exists()


def test_torchs_own_reader_takes_the_same_recordings(dumps: dict[int, dict[str, Any]]) -> None:
    """Its table of collectives names the same one: the format is torch's, and so is the verdict."""
    from torch.distributed.flight_recorder.components.builder import build_db

    details = {
        f"rank{rank}": {
            "host_name": "n",
            "rank": rank,
            **{key: dump[key] for key in ("entries", "version", "pg_config")},
        }
        for rank, dump in copy.deepcopy(dumps).items()
    }
    for dump in details.values():
        dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    words = Namespace(verbose=False, just_print_entries=False, allow_incomplete_ranks=False, mismatch_cap=10)
    found = build_db(details, words, dumps[0]["version"])
    assert [group.size for group in found.groups] == [2]
    assert [(call.collective_seq_id if hasattr(call, "collective_seq_id") else call.id) for call in found.collectives]


def test_what_torch_writes_today_is_read(tmp_path: Path) -> None:
    """One rank, in this process: torch's recorder still writes the keys that are read here."""
    import torch
    import torch.distributed as dist

    record = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    assert record is not None
    dump = read_dump(record())
    assert {"entries", "version", "pg_config"} <= dump.keys() | {"entries"}
    assert not dist.is_initialized()
    source = Path(dist.__file__).parent / "flight_recorder" / "components" / "types.py"
    text = source.read_text()
    for key in ("profiling_name", "state", "process_group", "input_sizes", "collective_seq_id"):
        assert f'event["{key}"]' in text, key
