"""`doctor` on one node, in the run's container: `python -m slurm_rl.plugins.health.doctor_node <folder>`.

The folder is shared by all nodes. It holds plan.json, the canary and `code/`, and gets one answer file per node. The
node of rank 0 leads the fabric measurement; the others find it by head.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_rl.node.driver import name_signal
from slurm_rl.node.limits import raise_limits
from slurm_rl.node.rendezvous import comes_true, own_address
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plugins.health.fabric_leader import CONNECT_S, lead_fabric
from slurm_rl.plugins.health.fabric_node import run_environment
from slurm_rl.plugins.health.leader import TOKEN_VARIABLE, Leader
from slurm_rl.plugins.health.probes import PROBES
from slurm_rl.plugins.health.script import build_script
from slurm_rl.plugins.health.table import TABLE, Check
from slurm_rl.plugins.health.verdict import Verdict
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

CANARY = "canary"
_SCRIPT_S = 180.0
_KILL_S = 2.0
_MEET_S = 60.0


def doctor_checks(plan: JobPlan) -> list[Check]:
    """Return the checks of the table that one node can answer."""
    return [check for check in TABLE if check.parse and check.vendor in ("", plan.accelerator)]


def run_probe(argv: Sequence[str], env: Mapping[str, str], deadline_s: float) -> tuple[str, str | None]:
    """Return the output of a process, and why it failed; at the deadline its process group is killed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0)
        failure = None
        try:
            status = process.wait(deadline_s)
            if status:
                failure = f"ended with {name_signal(-status) if status < 0 else f'exit status {status}'}"
        except subprocess.TimeoutExpired:
            failure = f"no answer within {deadline_s:g} s"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process in the kernel may outlive SIGKILL
                process.wait(_KILL_S)
        out.seek(0)
        err.seek(0)
        lines = err.read().decode(errors="replace").split("\n")
        last = next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "no output")
        return out.read().decode(errors="replace"), failure and f"{failure}: {last}"


def probe_verdict(output: str, failure: str | None) -> Verdict:
    """Parse the verdict that a probe printed."""
    if failure is not None:
        return Verdict("bad", failure)
    return Verdict(**json.loads(output))


def examine(folder: Path, plan: JobPlan) -> dict[str, Any]:
    """Run the script, then all probes at once; return the output of the script and the verdicts of the probes."""
    granted = {**os.environ, **plan.env}
    env = run_environment(plan, granted)
    script = build_script(plan, str(folder / CANARY), [check.source for check in doctor_checks(plan)])
    output, _ = run_probe(["/bin/sh", "-c", script], env, _SCRIPT_S)
    futures: dict[str, Future[tuple[str, str | None]]] = {}
    with ThreadPoolExecutor(len(PROBES)) as pool:
        for name, probe in PROBES.items():
            if plan.accelerator != "cpu" or not probe.needs_gpus:
                argv = [sys.executable, "-m", "slurm_rl.plugins.health.probes", name, str(folder)]
                futures[name] = pool.submit(run_probe, argv, granted if name == "masks" else env, probe.deadline_s)
    return {"script": output, "probes": {name: asdict(probe_verdict(*one.result())) for name, one in futures.items()}}


def measure(folder: Path, plan: JobPlan, rank: int, name: str) -> dict[str, Any]:
    """Take part in the fabric measurement; return its verdicts on the node of rank 0."""
    write_json(folder / f"node-{rank}.json", name)
    head = folder / "head.json"
    leader = Leader() if rank == 0 else None
    if leader is not None:
        peer = folder / "node-1.json"
        # Listing the folder: NFS caches that a file is missing.
        if plan.num_nodes > 1 and not comes_true(lambda: peer in set(folder.iterdir()), _MEET_S):
            return {"error": f"node 1 of {plan.num_nodes} did not start within {_MEET_S:g} s"}
        address = own_address(str(read_json(peer))) if plan.num_nodes > 1 else "127.0.0.1"
        write_json(head, {"address": address, "port": leader.port, "token": leader.token})
    elif not comes_true(lambda: head in set(folder.iterdir()), 2 * _MEET_S):
        return {}
    found = read_json(head)
    env = {**os.environ, TOKEN_VARIABLE: found["token"], NODE_VARIABLE: name}
    argv = [sys.executable, "-m", "slurm_rl.plugins.health.fabric_node", str(folder), found["address"]]
    client = subprocess.Popen([*argv, str(found["port"])], env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        if leader is None:
            client.wait()
            return {}
        threading.Thread(target=client.wait, daemon=True).start()
        leader.accept(plan.num_nodes, lambda: client.poll() is not None, min(CONNECT_S, 2 * _MEET_S))
        result = lead_fabric(leader, list(leader.nodes), plan)
        verdicts = {node: {key: asdict(one) for key, one in of.items()} for node, of in result.verdicts.items()}
        return {"verdicts": verdicts, "gb_s": result.gb_s}
    finally:
        if leader is not None:
            leader.close()
        client.wait()


def main(folder: str) -> int:
    raise_limits()
    plan = JobPlan.from_json(read_json(RunDir(folder).plan))
    # The step of a single node may be a task with another number.
    rank = int(os.environ["SLURM_PROCID"]) if plan.num_nodes > 1 else 0
    name = os.environ.setdefault(NODE_VARIABLE, socket.gethostname())
    answer = {"host": name, **examine(Path(folder), plan), "fabric": measure(Path(folder), plan, rank, name)}
    write_json(Path(folder) / f"answer-{rank}.json", answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
