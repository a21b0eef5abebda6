"""Verdicts on what a node says without any vendor's tool: its files, its limits, its ports. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_rl.node.limits import find_low_limits, read_locked_memory
from slurm_rl.plugins.health.gate.verdict import State, Verdict, Wanted, worst

_LEAST_KB, _FEW_KB = 1_000_000, 10_000_000
# A small tmpfs is how a site or a container made it, and no illness.
_FULL = 0.1
_SKEW_S = 2.0
_RDMA_MEMLOCK = 16e9


def read_files(text: str, rc: int, wanted: Wanted) -> Verdict:
    """The canary in the run directory, the node's own disk and /dev/shm, and its clock."""
    said = _read_pairs(text)
    if "clock" not in said:
        return Verdict("unknown", "it did not answer to the end")
    if said.get("canary") != wanted.word:
        return Verdict("bad", "does not see the run directory")
    found = [Verdict("ok", "sees the run directory")]
    for name, where in (("tmp", "cluster.tmp_root"), ("shm", "/dev/shm")):
        if said.get(f"{name}_writable") != "yes":
            found.append(Verdict("bad", f"has no {where} to write to" if name == "shm" else f"cannot write to {where}"))
        found.append(_read_space(where, said.get(f"{name}_kb", "")))
    return worst([*found, _read_clock(said["clock"], wanted)])


def _read_space(where: str, text: str) -> Verdict:
    match = re.fullmatch(r"(\d+) (\d+)", text)
    if not match:
        return Verdict("unknown", f"{where} does not say what is free")
    size, free = int(match[1]), int(match[2])
    seen = f"{where} has {free / 1e6:.3g} GB free"
    if free < min(_LEAST_KB, _FULL * size):
        return Verdict("bad", seen)
    return Verdict("warn" if free < min(_FEW_KB, _FULL * size) else "ok", seen)


def _read_clock(text: str, wanted: Wanted) -> Verdict:
    try:
        now = float(text)
    except ValueError:
        return Verdict("unknown", "its clock cannot be read")
    begin, end = wanted.asked
    skew = max(begin - now, now - end, 0.0)
    return Verdict("warn", f"its clock is {skew:.1f} s off") if skew > _SKEW_S else Verdict("ok", "its clock is right")


def read_start(text: str, rc: int, wanted: Wanted) -> Verdict:
    """What the agent is started with: code, image, Python, locks, limits."""
    said = _read_pairs(text)
    if "limits" not in said:
        return Verdict("unknown", "it did not answer to the end")
    found = [Verdict("ok", "all is there", {"image": said["image"]} if said.get("image") else {})]
    if said.get("code") == "missing":
        found.append(Verdict("bad", "does not see the code of the run"))
    if said.get("image") == "missing":
        found.append(Verdict("bad", "does not see the image (container.image)"))
    if "ok" not in said.get("python", ""):
        state: State = "bad" if wanted.needs_python else "warn"
        found.append(Verdict(state, f"its Python does not start: {said.get('python') or 'no word'}"))
    elif "unlocked" in said["python"]:
        found.append(Verdict("warn", "no file of the run directory can be locked"))
    memlock = read_locked_memory(text)
    if said.get("rdma", "0") != "0" and memlock is not None and memlock < _RDMA_MEMLOCK and wanted.num_nodes > 1:
        found.append(Verdict("warn", f"may lock {memlock / 1024:.0f} KiB of memory, too little for RDMA"))
    if low := find_low_limits(text):
        found.append(Verdict("warn", f"its hard limits (ulimit -H -a) are low: {', '.join(low)}"))
    return worst(found)


def _read_pairs(text: str) -> dict[str, str]:
    """`name value` a line; what is said twice counts the first time."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, value.strip())
    return found


def read_ports(text: str, rc: int, wanted: Wanted) -> Verdict:
    """`mlx5_0:1 4: ACTIVE|400 Gb/sec (4X NDR)|0` a line, or what ibstat prints; other nodes tell what is right."""
    rows = re.findall(r"^(\S+:\d+) (\d): (\w+)\|([\d.]+) Gb[^|]*\|(\d*)$", text, re.MULTILINE)
    ports = {name: rate if state == "ACTIVE" else "down" for name, _, state, rate, _ in rows}
    blocks = re.split(r"^CA '([^']+)'", text, flags=re.MULTILINE)
    for name, body in zip(blocks[1::2], blocks[2::2], strict=True):
        state, rate = re.search(r"^\s+State: (\w+)", body, re.MULTILINE), re.search(r"Rate: (\d+)", body)
        if state and rate:
            ports[name] = rate[1] if state[1] == "Active" else "down"
    if not ports:
        return Verdict("unknown", "no RDMA port")
    facts = {f"port {name}": rate for name, rate in ports.items()}
    down = [name for name, rate in ports.items() if rate == "down"]
    return Verdict("ok", f"{len(ports) - len(down)} of {len(ports)} ports active", facts)


def compare_ports(told: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """A port that is down where most nodes have it up is bad, one that is slower there is told."""
    usual = find_usual(told)
    found = {}
    for node, verdict in told.items():
        wrong = [Verdict("ok", verdict.seen)]
        for port, rate in usual.items():
            own = verdict.facts.get(port, "down") if verdict.facts else rate
            if own == "down" and rate != "down":
                wrong.append(Verdict("bad", f"{port} is down, of most nodes it is up"))
            elif own != rate and rate != "down" and float(own) < float(rate):
                wrong.append(Verdict("warn", f"{port} runs at {own} of {rate} Gb/s"))
        found[node] = worst(wrong) if verdict.facts else verdict
    return found


def find_usual(told: Mapping[str, Verdict]) -> dict[str, str]:
    """Fact -> the value that more than half of all nodes have; facts without one are left out."""
    counts: dict[str, dict[str, int]] = {}
    for verdict in told.values():
        for name, value in verdict.facts.items():
            counts.setdefault(name, {}).setdefault(value, 0)
            counts[name][value] += 1
    return {
        name: value for name, values in counts.items() for value, number in values.items() if 2 * number > len(told)
    }


def compare_facts(told: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Bad is who has something else than most nodes."""
    usual = find_usual(told)
    found = {}
    for node, verdict in told.items():
        others = [
            Verdict("bad", f"{name}: {value}, of most nodes {usual[name]}")
            for name, value in verdict.facts.items()
            if value != usual.get(name, value)
        ]
        found[node] = worst([verdict, *others])
    return found
