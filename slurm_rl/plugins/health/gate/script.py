"""The question to all nodes: one script of plain sh, and its answers taken apart. Pure.

Outside any container, and without Python where it can be, because a node that cannot see the code cannot run it. Each
line of an answer begins with the node's own name: srun numbers its tasks in no order of ours.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plugins.health.gate import disks

# A hanging GPU makes its tool hang, which is an answer, too.
_TOOL_S = 20
_SMI = """
[ -n "${CUDA_VISIBLE_DEVICES-}" ] && echo "mask $CUDA_VISIBLE_DEVICES"
said=$(timeout -k 1 %d nvidia-smi -q -x 2>&1); rc=$?
printf '%%s\\n' "$said" | sed '/<supported_clocks>/,/<\\/supported_clocks>/d'
exit $rc
"""
_ROCM = """
[ -n "${ROCR_VISIBLE_DEVICES-}" ] && echo "mask $ROCR_VISIBLE_DEVICES"
nodes=/sys/class/kfd/kfd/topology/nodes
[ -d $nodes ] && echo "kfd $(grep -l '^simd_count [1-9]' $nodes/*/properties | wc -l)"
timeout -k 1 %d rocm-smi -a --showmeminfo vram --json 2>/dev/null
"""
_RAS = """
for file in /sys/class/drm/card*/device/ras/*_err_count /sys/class/drm/card*/device/ras/gpu_vram_bad_pages; do
[ -r "$file" ] && cat "$file"
done
timeout -k 1 %d amd-smi metric --ecc --xgmi-err --json 2>/dev/null
"""
_KERNEL = """
printf 'uptime '; cut -d' ' -f1 /proc/uptime
said=$(dmesg 2>/dev/null) || exit 1
printf '%s\\n' "$said" | grep -E 'NVRM: Xid|SXid|lost carrier|Link down$' | tail -n 200
exit 0
"""
_PORTS = """
for port in /sys/class/infiniband/*/ports/*; do
[ -r "$port/state" ] || continue
device=${port#/sys/class/infiniband/}
downed=$(cat "$port/counters/link_downed" 2>/dev/null)
echo "${device%%/*}:${port##*/} $(cat "$port/state")|$(cat "$port/rate")|$downed"
done
"""
# The lock is that of jsonl.py; the file is open for reading, which suffices for a shared one.
_LOCK = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1]), fcntl.LOCK_SH)
    print("python ok")
except OSError as error:
    print("python ok, unlocked:", error)
"""


def _files(plan: JobPlan, canary: str) -> str:
    places = {"tmp": shlex.quote(plan.tmp_root), "shm": "/dev/shm"}
    lines = [f"echo canary $(cat {shlex.quote(canary)})"]
    for name, path in places.items():
        lines.append(f"[ -d {path} ] && [ -w {path} ] && echo {name}_writable yes")
        lines.append(f"df -Pk {path} | awk 'END {{print \"{name}_kb\", $2, $4}}'")
    return "\n".join([*lines, "date +'clock %s.%N'"])


def _start(plan: JobPlan, canary: str) -> str:
    code, image = f"{plan.run_dir}/code", str(plan.container.get("image") or "")
    lines = [f"[ -d {shlex.quote(code)} ] || echo code missing"]
    if image.startswith("/"):
        file = shlex.quote(image)
        lines.append(f"[ -r {file} ] && echo image $(stat -Lc '%s bytes of %Y' {file}) || echo image missing")
    python = shlex.quote(plan.host_python)
    lines.append(f"{python} -I -S -c {shlex.quote(_LOCK)} {shlex.quote(canary)} || echo python exit status $?")
    lines.append("echo rdma $(ls /sys/class/infiniband 2>/dev/null | wc -l)")
    return "\n".join([*lines, "grep ^Max /proc/self/limits", "echo limits end"])


# Three tries, for a busy moment is no slow disk. dd's own time leaves out how long the file took to be opened.
_DISK = """
for try in 1 2 3; do
begin=$(date +%s.%N)
timeout -k 1 {timeout} dd if=/dev/zero of="$file" bs=1048576 count={blocks} conv=fsync 2>/dev/null; rc=$?
end=$(date +%s.%N)
echo "write {name} $rc $begin $end"
awk "BEGIN {{ exit !($end - $begin < {well}) }}" 2>/dev/null && break
done
rm -f "$file"
"""


def _disks(plan: JobPlan, canary: str) -> str:
    # srun may be ended while a disk makes it wait.
    lines = ["file=", "trap 'rm -f \"$file\"' EXIT", "trap 'exit 143' TERM HUP INT"]
    for name, path in (("run_dir", f"{canary}-"), ("tmp_root", f"{plan.tmp_root}/srl-speed-")):
        lines.append(f"file={shlex.quote(path)}$node-$$")
        words = {"timeout": disks.TIMEOUT_S, "blocks": disks.NUM_BYTES >> 20, "well": disks.WELL_S}
        lines.append(_DISK.format(name=name, **words))
    return "\n".join(lines)


SOURCES: dict[str, Callable[[JobPlan, str], str]] = {
    "files": _files,
    "start": _start,
    "nvidia-smi": lambda plan, canary: _SMI % _TOOL_S,
    "kernel": lambda plan, canary: _KERNEL,
    "nvlink": lambda plan, canary: f"timeout -k 1 {_TOOL_S} nvidia-smi nvlink --status",
    "rocm-smi": lambda plan, canary: _ROCM % _TOOL_S,
    "ras": lambda plan, canary: _RAS % _TOOL_S,
    "disks": _disks,
    "ports": lambda plan, canary: _PORTS,
    "dcgm": lambda plan, canary: "timeout -k 1 120 dcgmi diag -r 1 -j",
}
"""Name -> sh that prints it; its exit status counts."""


def build_script(plan: JobPlan, canary: str, sources: Iterable[str]) -> str:
    """What each node runs; the sources one after the other, in a shell each."""
    lines = [f"node=${NODE_VARIABLE}"]
    for name in dict.fromkeys(sources):
        asked = f"( {SOURCES[name](plan, canary)}\n)"
        lines.append(f"{{ {asked}; printf '\\n=rc %s\\n' $?; }} 2>&1 | sed \"s%^%$node|{name}|%\"")
    return "\n".join(lines)


@dataclass
class Said:
    """What a source printed on a node."""

    text: str = ""
    rc: int | None = None
    """None while it has not ended."""
    lines: list[str] = field(default_factory=list)


def parse_answers(output: str) -> dict[str, dict[str, Said]]:
    """Node -> source -> what it said; lines of several nodes may be mixed.

    >>> found = parse_answers("n2|files|canary 1\\nn1|files|canary 1\\nn2|files|=rc 0\\n")
    >>> found["n2"]["files"].text, found["n2"]["files"].rc, found["n1"]["files"].rc
    ('canary 1', 0, None)
    """
    found: dict[str, dict[str, Said]] = {}
    for line in output.splitlines():
        node, _, rest = line.partition("|")
        source, bar, text = rest.partition("|")
        if not bar or source not in SOURCES:
            continue
        said = found.setdefault(node, {}).setdefault(source, Said())
        if end := re.fullmatch(r"=rc (\d+)", text):
            said.rc = int(end[1])
        else:
            said.lines.append(text)
    for sources in found.values():
        for said in sources.values():
            said.text = "\n".join(said.lines).removesuffix("\n")
    return found
