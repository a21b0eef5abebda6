"""The shell script that collects the data of all checks on a node, and the parser of its output.

The script is plain sh. In the preflight it runs outside of the container, since a node that cannot see the code cannot
run Python from it; `doctor` runs it in the container. Each line of output begins with the name of the node, because
srun numbers tasks in an arbitrary order.
"""

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plugins.health import probes
from slurm_rl.plugins.health.gpus import TOOLS
from slurm_rl.plugins.health.host import DISK_BYTES, DISK_FAST_S, DISK_TIMEOUT_S

FABRIC = "fabric"
"""Source of the lines of fabric_node.py."""
_TOOL = "timeout -k 1 20"
"""A hanging GPU makes its tool hang; the timeout is then the finding."""
_NVIDIA_SMI = f"""
[ -n "${{CUDA_VISIBLE_DEVICES-}}" ] && echo "mask $CUDA_VISIBLE_DEVICES"
{_TOOL} {" ".join(TOOLS["nvidia"])} 2>&1
"""
_ROCM_SMI = f"""
[ -n "${{ROCR_VISIBLE_DEVICES-}}" ] && echo "mask $ROCR_VISIBLE_DEVICES"
nodes=/sys/class/kfd/kfd/topology/nodes
[ -d $nodes ] && echo "kfd $(grep -l '^simd_count [1-9]' $nodes/*/properties | wc -l)"
{_TOOL} {" ".join(TOOLS["amd"])} 2>/dev/null
"""
_RAS = f"""
for file in /sys/class/drm/card*/device/ras/*_err_count /sys/class/drm/card*/device/ras/gpu_vram_bad_pages; do
[ -r "$file" ] && cat "$file"
done
{_TOOL} amd-smi metric --ecc --json 2>/dev/null
"""
# The same kind of lock as in jsonl.py; a shared lock needs read access only.
_LOCK = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1]), fcntl.LOCK_SH)
    print("python ok")
except OSError as error:
    print("python ok, unlocked:", error)
"""
# Three tries, since a disk may be busy for a moment. dd's own time excludes the opening of the file.
_DISK = f"""
for try in 1 2 3; do
begin=$(date +%s.%N)
timeout -k 1 {DISK_TIMEOUT_S} dd if=/dev/zero of="$file" bs=1048576 count={DISK_BYTES >> 20} conv=fsync 2>/dev/null
rc=$?
end=$(date +%s.%N)
echo "write $place $rc $begin $end"
awk "BEGIN {{ exit !($end - $begin < {DISK_FAST_S}) }}" 2>/dev/null && break
done
rm -f "$file"
"""


def _files(plan: JobPlan, canary: str) -> str:
    lines = [f"echo canary $(cat {shlex.quote(canary)})"]
    for name, path in (("tmp", shlex.quote(plan.tmp_root)), ("shm", "/dev/shm")):
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


def _disks(plan: JobPlan, canary: str) -> str:
    # srun may be ended while a disk blocks the script.
    lines = ["file=", "trap 'rm -f \"$file\"' EXIT", "trap 'exit 143' TERM HUP INT"]
    for place, path in (("run_dir", f"{canary}-"), ("tmp_root", f"{plan.tmp_root}/srl-speed-")):
        lines += [f"place={place}", f"file={shlex.quote(path)}$node-$$", _DISK]
    return "\n".join(lines)


def _probe(name: str, plan: JobPlan, canary: str) -> str:
    argv = [plan.host_python, "-m", probes.__name__, name, plan.run_dir]
    return f"timeout -k 1 {probes.DEADLINE_S} {shlex.join(argv)}"


SOURCES: dict[str, Callable[[JobPlan, str], str]] = {
    "files": _files,
    "start": _start,
    "nvidia-smi": lambda plan, canary: _NVIDIA_SMI,
    "rocm-smi": lambda plan, canary: _ROCM_SMI,
    "ras": lambda plan, canary: _RAS,
    "disks": _disks,
    **{name: partial(_probe, name) for name in probes.PROBES},
}
"""Name -> shell code; its output and exit status are the data of a check."""


def build_script(plan: JobPlan, canary: str, sources: Iterable[str]) -> str:
    """Return the script of a node: one subshell per source, in order."""
    lines = [f"node=${{{NODE_VARIABLE}:-$(uname -n)}}"]
    for name in dict.fromkeys(sources):
        shell = f"( {SOURCES[name](plan, canary)}\n)"
        lines.append(f"{{ {shell}; printf '\\n=rc %s\\n' $?; }} 2>&1 | sed \"s%^%$node|{name}|%\"")
    return "\n".join(lines)


@dataclass
class Output:
    """Output of one source on one node."""

    rc: int | None = None
    """None if the source has not ended."""
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).removesuffix("\n")


def parse_outputs(output: str) -> dict[str, dict[str, Output]]:
    """Return node -> source -> output. The lines of several nodes may be interleaved.

    >>> outputs = parse_outputs("n2|files|canary 1\\nn1|files|canary 1\\nn2|files|=rc 0\\n")
    >>> outputs["n2"]["files"].text, outputs["n2"]["files"].rc, outputs["n1"]["files"].rc
    ('canary 1', 0, None)
    """
    outputs: dict[str, dict[str, Output]] = {}
    for line in output.splitlines():
        node, _, rest = line.partition("|")
        source, bar, text = rest.partition("|")
        if not bar or source not in (*SOURCES, FABRIC):
            continue
        entry = outputs.setdefault(node, {}).setdefault(source, Output())
        if end := re.fullmatch(r"=rc (\d+)", text):
            entry.rc = int(end[1])
        else:
            entry.lines.append(text)
    return outputs
