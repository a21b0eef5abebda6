"""Runs of the light trainer on the test cluster: submit, watch, inject faults, compare metrics."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_rl.config.load import load_config
from slurm_rl.launch.controller.create import create_run
from slurm_rl.launch.jobs import submit_run
from slurm_rl.node.private_folder import tmp_stem
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.goodput.read import read_ledger, read_steps
from slurm_rl.plugins.goodput.render import render_line
from slurm_rl.plugins.goodput.types import Ledger
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.slurm.cluster import Cluster, wait_until

TRAINER = Path(__file__).with_name("trainer.py")
RANKS = Path(__file__).with_name("ranks.py")
_one_at_a_time = threading.Lock()


class LightRun:
    """One run of the light trainer and its job."""

    script = TRAINER
    settings: Mapping[str, float] = {"num_steps": 60, "step_s": 0.1, "save_every": 5}

    def __init__(self, cluster: Cluster, folder: Path, *words: str, net_s: int | None = None, **trainer: float) -> None:
        """Create the run directory as `submit` does, with the light trainer in its plan, and submit it.

        Args:
            net_s: seconds before the limit at which Slurm signals; replaces the planned value.
        """
        self.cluster, self.run_dir = cluster, RunDir(folder)
        settings = {**self.settings, **trainer}
        # A dashboard would take a third of the CPU time of each bring-up.
        small = ["+cluster=slurm_cpu", "cluster.cpus_per_node=1", "cluster.mem_gb_per_node=2", "ray.dashboard=false"]
        experiment = [] if any(word.startswith("+exp=") for word in words) else ["+exp=demo"]
        with _one_at_a_time:  # Hydra has one global state
            config = load_config([*experiment, *small, *words])
        plan = build_plan(config, str(folder), SubmitFacts(sys.executable, 2, "test"))
        argv = [sys.executable, str(self.script), "--run-dir", str(folder)]
        if plan.torchrun is not None:
            argv = [sys.executable, "-u", "-m", "slurm_rl.node.rank", str(RANKS), str(folder)]
        argv += [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        self.plan = replace(plan, driver_argv=tuple(argv))
        if net_s is not None:
            limits, sbatch = replace(plan.limits, checkpoint_lead_s=net_s), {**plan.sbatch, "signal": f"B:USR2@{net_s}"}
            self.plan = replace(self.plan, limits=limits, sbatch=sbatch)
        with slurm_environment(cluster):
            create_run(self.run_dir, config, self.plan)
        self.submit()

    @classmethod
    def open(cls, cluster: Cluster, folder: Path) -> LightRun:
        """Open a run that another process submitted."""
        run = cls.__new__(cls)
        run.cluster, run.run_dir = cluster, RunDir(folder)
        run.plan = JobPlan.from_json(read_json(run.run_dir.plan))
        run.job = str(read_json(run.run_dir.job)["job_id"])
        return run

    def submit(self) -> None:
        """Submit the run; a second call acts like `resume`."""
        with slurm_environment(self.cluster):
            self.job = submit_run(self.run_dir, self.plan).job_id

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in read_rows(self.run_dir.events) if row["kind"] == kind]

    def wait_for_events(self, kind: str, count: int = 1, timeout_s: float = 240) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.events(kind)) >= count, f"{kind} number {count}", timeout_s=timeout_s)
        return self.events(kind)

    def wait_for_step(self, step: int, timeout_s: float = 240) -> None:
        def is_there() -> bool:
            return any(row["step"] >= step for row in read_rows(self.run_dir.metrics))

        wait_until(is_there, f"step {step}", timeout_s=timeout_s)

    def wait_for_training(self, attempt: int) -> None:
        """Wait until this attempt has trained and saved a checkpoint."""

        def is_there() -> bool:
            started = [row["time"] for row in self.events("trainer/started") if row["attempt"] == attempt]
            return bool(started) and any(row["time"] > started[0] for row in self.events("checkpoint/saved"))

        wait_until(is_there, f"attempt {attempt} to save", timeout_s=240)

    def wait_for_end(self, timeout_s: float = 300) -> dict[str, Any]:
        """Wait until the run has ended and its job has left Slurm; return end.json."""

        def is_over() -> bool:
            state = self.cluster.run(["squeue", "-h", "-t", "all", "-j", self.job, "-o", "%T"]).stdout.strip()
            return self.run_dir.end.is_file() and state not in ("RUNNING", "PENDING", "COMPLETING")

        wait_until(is_over, f"job {self.job} to end", timeout_s=timeout_s)
        found: dict[str, Any] = read_json(self.run_dir.end)
        return found

    def check_finished(self, num_steps: int = 60, num_values: int | None = None) -> None:
        """Wait for the end; check that the run logged the rows of an undisturbed one."""
        end = self.wait_for_end()
        assert end["state"] == "finished", (end, self.causes)
        assert self.metrics() == expected_metrics(num_steps, num_values or self.plan.num_nodes)

    def preempt(self) -> None:
        """Submit a job in the high partition that takes a node from the run for a short time."""
        words = ["-p", "high", "-w", self.hosts(1)[0], "--exclusive", "--mem=100", "--output=/dev/null"]
        done = self.cluster.run(["sbatch", *words, "--wrap", "sleep 2"])
        assert done.returncode == 0, done.stderr

    def wait_for_state(self, state: str) -> None:
        def is_there() -> bool:
            shown = self.cluster.run(["squeue", "-h", "-t", "all", "-j", self.job, "-o", "%T"])
            return shown.stdout.strip() == state

        wait_until(is_there, f"job {self.job} to be {state}", timeout_s=120)

    @property
    def starts(self) -> list[tuple[str, int]]:
        """Job id and restart count of each controller that held the run's lease, by epoch."""
        found = sorted(self.run_dir.lease.glob("*.json"), key=lambda path: int(path.stem))
        return [(holder["job"], holder["restart"]) for holder in map(read_json, found)]

    @property
    def outcomes(self) -> list[str]:
        return [row["outcome"] for row in self.events("attempt/ended")]

    @property
    def causes(self) -> list[str]:
        return [row["cause"] for row in self.events("attempt/ended")]

    def hosts(self, attempt: int) -> list[str]:
        passed = [row for row in self.events("preflight/passed") if row["attempt"] == attempt]
        return list(passed[0]["nodes"])

    def kill(self, host: str, words: str, *, newest_only: bool = False) -> None:
        """SIGKILL the processes of this run on `host` with `words` in their command line."""
        found = [p for p in self.cluster.processes(host) if words in p.cmdline and self.is_ours(p.cmdline)]
        assert found, f"no {words} on {host}"
        found.sort(key=lambda process: process.pid)
        for process in found[-1:] if newest_only else found:
            with contextlib.suppress(Exception):  # may have died with another of them
                self.cluster.signal(host, process.pid, 9)

    def is_ours(self, cmdline: str) -> bool:
        # Ray's processes name their session folder, ours the run directory.
        path = self.run_dir.path
        names = [f"{path} ", f"{path}/", tmp_stem(self.plan)]
        return any(name in f"{cmdline} " for name in names)

    def send_stop(self, times: int = 1) -> None:
        """Send the signal that Slurm sends before a time limit (--signal=B:USR2@<lead>), to the batch step only."""
        for _ in range(times):
            self.cluster.run(["scancel", "--batch", "--signal=USR2", self.job])

    def metrics(self) -> list[str]:
        """Return all logged rows without times, with the digits as written."""
        lines = self.run_dir.metrics.read_text().splitlines()
        rows = [json.loads(line, parse_float=str) for line in lines]
        return [json.dumps({key: row[key] for key in row if not key.startswith("time/")}) for row in rows]

    def leftovers(self) -> dict[str, Any]:
        """Return the processes and files of this run on each node that is on."""
        found: dict[str, Any] = {}
        for host in filter(self.cluster.is_on, self.cluster.nodes):
            left = self.cluster.leftovers(host)
            ours = [p.cmdline for p in left.processes if self.is_ours(p.cmdline)]
            ours += [path for path in left.tmp if tmp_stem(self.plan) in path]
            if ours:
                found[host] = ours
        return found


def check_ledger(run: LightRun) -> Ledger:
    """Check that every held second is explained and that `redone` is the time of the repeated steps."""
    ledger = read_ledger(run.run_dir)
    assert ledger is not None and not ledger.unknown, ledger
    assert abs(sum(ledger.buckets.values()) - ledger.held_s) <= 1e-6 * ledger.held_s
    assert ledger.buckets["other"] <= 0.02 * ledger.held_s, render_line(ledger)
    steps = read_steps(run.run_dir)
    repeated = 0.0
    for attempt, rows in steps.items():
        again = {row["step"] for other, those in steps.items() if other > attempt for row in those}
        repeated += sum(row["seconds"] for row in rows if row["stage"] == "grpo" and row["step"] in again)
    repeated *= run.plan.num_nodes * (run.plan.gpus_per_node or 1)
    # Rows are rounded to 0.1 ms.
    assert abs(ledger.buckets["redone"] - repeated) <= 0.01 + 0.01 * repeated, (ledger.buckets, repeated)
    return ledger


def wait_until_clean(cluster: Cluster) -> None:
    """Wait until no node that is on has a process, port, shared memory or file of a job."""
    for host in filter(cluster.is_on, cluster.nodes):

        def is_clean(host: str = host) -> bool:
            return not cluster.leftovers(host)

        try:
            wait_until(is_clean, host, timeout_s=30)
        except TimeoutError:
            raise AssertionError(f"left on {host}: {cluster.leftovers(host)}") from None


def expected_metrics(num_steps: int, num_nodes: int) -> list[str]:
    """Return the rows that an undisturbed run logs."""
    from tests.slurm.light.trainer import Counter

    values, rows = [0.5] * num_nodes, []
    for step in range(num_steps):
        values = [Counter().add(step, value, 0.0) for value in values]
        row = {"step": step + 1, "stage": "grpo", **{f"value/{n}": repr(v) for n, v in enumerate(values)}}
        rows.append(json.dumps(row))
    return rows


@contextlib.contextmanager
def slurm_environment(cluster: Cluster) -> Iterator[None]:
    """Set this process's environment as on the cluster's login node; one thread at a time."""
    with _one_at_a_time:
        saved = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
        try:
            yield
        finally:
            if saved is None:
                del os.environ["SLURM_CONF"]
            else:
                os.environ["SLURM_CONF"] = saved
