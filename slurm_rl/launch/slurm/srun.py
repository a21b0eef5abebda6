"""Steps of the job around this process: all node agents by one srun, and one more that cleans their nodes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.agents import (
    agent_environment,
    container_cleanup,
    find_dirty,
    own_user,
    settle_silent_agent,
)
from slurm_rl.launch.controller.ends import read_record
from slurm_rl.launch.slurm.command_line import run_slurm
from slurm_rl.launch.slurm.granted import split_hosts
from slurm_rl.launch.slurm.partitions import nodes_down, slurmd_port
from slurm_rl.node.cleaning import DONE
from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.node_groups import group_of
from slurm_rl.plan.step import build_nodes_step, build_srun, task_log, with_host_setup, wrap_agent, wrap_copy
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event

_CLEANING_S = 30.0
_ANSWER_S = 15.0
"""Time for a node to reboot; after that it counts as lost."""
_PATIENCE_S = 10.0
"""Agents that leave for one cause end within seconds of each other."""
_LOOK_S = 1.0
_TRY_S = 3.0
_THREADS = 32


def start_slurm_agents(
    plan: JobPlan, attempt: AttemptDir, nodes: Sequence[str], job_key: str, env: Mapping[str, str]
) -> AgentsStep:
    """Start all node agents by one srun."""
    wrapped = wrap_agent(plan, attempt.number, job_key, own_user())
    step = build_nodes_step(plan, split_hosts(plan, nodes, os.environ), str(attempt.logs), wrapped)
    hosts = {HOSTS_VARIABLE: ",".join(nodes)}
    # Save and leave. SIGTERM would make srun kill its tasks before they could.
    srun = start_child(step, agent_environment(plan, env, wrapped) | hosts, attempt.log("srun"), signal.SIGUSR2)
    return AgentsStep(srun, attempt, len(nodes))


def start_slurm_copy(
    plan: JobPlan, attempt: AttemptDir, nodes: Sequence[str], job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes] | None:
    """Start the copy of the attempt to checkpoint.upload_url, on the first of its nodes that is up."""
    reachable = _without_down(nodes)
    if not reachable:
        return None
    wrapped = wrap_copy(plan, attempt.number, job_key, own_user())
    parts = split_hosts(plan, reachable[:1], os.environ)
    argv = build_srun(parts, with_host_setup(plan, wrapped.argv), [wrapped.srun_args])
    return start_child(argv, agent_environment(plan, env, wrapped), attempt.log("final-copy"), signal.SIGTERM)


def srun_argv(plan: JobPlan, nodes: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the srun of this command on these nodes, in the job around this process."""
    return build_srun(split_hosts(plan, nodes, os.environ), command)


def run_srun(argv: Sequence[str], env: Mapping[str, str], deadline_s: float) -> tuple[str, str]:
    """Return the output of the nodes, even after a timeout, and srun's last messages."""
    try:
        done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=deadline_s)
        return done.stdout, done.stderr.strip()[-500:]
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace"), f"no answer within {deadline_s:g} s"


def clean_nodes(
    run: RunDir, plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], job_key: str, env: Mapping[str, str]
) -> list[str]:
    """Clean nodes after agents that died early; return those without an answer. `hosts` are by rank."""
    ranks = find_dirty(attempt, len(hosts))
    if not ranks:
        return []
    dirty = [hosts[rank] for rank in ranks]
    reachable = _without_down(dirty)
    gone = find_unreachable(reachable, _ANSWER_S) if reachable else []
    reachable = [host for host in reachable if host not in gone]
    if not reachable:
        append_event(run, "nodes/cleaned", attempt=attempt.number, hosts=dirty, silent=dirty, errors="none answers")
        return dirty
    command = [plan.host_python, "-m", "slurm_rl.node.cleaning"]
    command += ["--run-dir", plan.run_dir, "--attempt", str(attempt.number), "--job-key", job_key]
    command += ["--hosts", ",".join(hosts), "--", *container_cleanup(plan, attempt, job_key)]
    output, errors = run_srun(srun_argv(plan, reachable, command), env, _CLEANING_S)
    answered = {line.removeprefix(DONE).strip() for line in output.splitlines() if line.startswith(DONE)}
    silent = [host for host in dirty if host not in answered]
    append_event(run, "nodes/cleaned", attempt=attempt.number, hosts=dirty, silent=silent, errors=errors)
    return silent


def _without_down(hosts: Sequence[str]) -> list[str]:
    """Remove lost nodes: since Slurm 23.02 an srun with one of them starts on no node."""
    try:
        down = nodes_down()
    except SlurmRLError:
        return list(hosts)
    return [host for host in hosts if host not in down]


class AgentsStep:
    """`Nodes` of a Slurm job.

    After the head's agent has ended, the others end. srun waits for an agent on a lost node for longer than KillWait
    (30 s by default), so it is killed after a while; the nodes are cleaned as after every lost agent.
    """

    def __init__(
        self, srun: subprocess.Popen[bytes], attempt: AttemptDir, num_nodes: int, patience_s: float = _PATIENCE_S
    ) -> None:
        self.srun, self.attempt, self.num_nodes, self.patience_s = srun, attempt, num_nodes, patience_s
        self._look_at = 0.0
        self._ended_at: float | None = None

    @property
    def returncode(self) -> int | None:
        return self.srun.returncode

    def poll(self) -> int | None:
        status = self.srun.poll()
        if status is None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + min(_LOOK_S, self.patience_s)
            self._look_for_the_last()
        return status

    def send_signal(self, sig: int, /) -> None:
        self.srun.send_signal(sig)

    def terminate(self) -> None:
        self.srun.terminate()

    def _look_for_the_last(self) -> None:
        if read_record(self.attempt, 0).get("state") != "ended" or not find_dirty(self.attempt, self.num_nodes):
            return
        self._ended_at = self._ended_at or time.monotonic()
        if time.monotonic() > self._ended_at + self.patience_s:
            self.srun.send_signal(signal.SIGKILL)


def find_unreachable(hosts: Sequence[str], within_s: float) -> list[str]:
    """Return the hosts that did not answer at slurmd's port in time; none if Slurm does not report addresses."""
    try:
        addresses = parse_addresses(run_slurm(["sinfo", "-h", "-N", "-n", ",".join(hosts), "-o", "%N %o"]))
        port = slurmd_port()
    except SlurmRLError:
        return []
    return wait_for_answers({host: (addresses[host], port) for host in hosts if host in addresses and port}, within_s)


def parse_addresses(output: str) -> dict[str, str]:
    """Parse `sinfo -h -N -o '%N %o'`, which has a line for each partition of a node.

    >>> parse_addresses("n1 10.0.0.1\\nn1 10.0.0.1\\nn2 n2\\n")
    {'n1': '10.0.0.1', 'n2': 'n2'}
    """
    rows = (line.split() for line in output.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def wait_for_answers(addresses: Mapping[str, tuple[str, int]], within_s: float) -> list[str]:
    """Poll the hosts until all have answered or the time is over; return the silent ones."""
    deadline, silent = time.monotonic() + within_s, list(addresses)
    with ThreadPoolExecutor(_THREADS) as pool:
        while silent:
            answers = list(pool.map(_answers, [addresses[host] for host in silent]))
            silent = [host for host, is_up in zip(silent, answers, strict=True) if not is_up]
            if time.monotonic() > deadline:
                break
    return silent


def _answers(address: tuple[str, int]) -> bool:
    began = time.monotonic()
    try:
        socket.create_connection(address, timeout=_TRY_S).close()
    except (ConnectionRefusedError, socket.gaierror):
        return True  # a refusal comes from a live node; an unresolved name proves nothing
    except OSError:
        time.sleep(max(0.0, began + 0.5 - time.monotonic()))  # "no route" returns at once
        return False
    return True


def settle_silent_tasks(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], srun_errors: Sequence[str]) -> None:
    """Write records of agents that could not, by srun's words on its tasks: `n2: task 1: Exited with exit code 2`."""
    for line in srun_errors:
        found = re.fullmatch(r"(\S+): tasks? (\d+)\S*: Exited with exit code (\d+)", line)
        if found and found[1] in hosts:
            log = _find_log(plan, attempt, hosts.index(found[1]), int(found[2]))
            settle_silent_agent(plan, attempt, hosts.index(found[1]), found[1], log, int(found[3]))


def _find_log(plan: JobPlan, attempt: AttemptDir, rank: int, task: int) -> Path:
    """Return srun's output files of the tasks. For a component srun numbers tasks from 0 and files from its own number,
    so the order of the files counts."""
    if not plan.node_groups:
        return attempt.log(f"{task_log(None)}{task}")
    group = plan.node_groups.index(group_of(plan.node_groups, rank))
    files = attempt.logs.glob(f"{task_log(group)}*.log")
    logs = sorted(files, key=lambda path: int(path.stem.rpartition("-")[2]))
    return logs[task] if task < len(logs) else attempt.log(f"{task_log(group)}{task}")
