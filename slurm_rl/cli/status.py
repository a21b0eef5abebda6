"""`status`: where a run stands, from its directory and, on a cluster, from Slurm."""

from __future__ import annotations

from slurm_rl.cli.common import find_run
from slurm_rl.run_dir import RunDir, read_json, read_jsonl
from slurm_rl.slurm.jobs import is_job_alive, load_job


def run(words: list[str]) -> int:
    print(render_status(find_run(words)))
    return 0


def render_status(run: RunDir) -> str:
    """State, job, step and the newest numbers, one a line."""
    job = load_job(run)
    rows = list(read_jsonl(run.metrics))
    last = next((row for row in reversed(rows) if row["stage"] != "eval"), None)
    lines = [f"run     {run.path}", f"state   {describe_state(run)}"]
    if job:
        lines.append(f"job     {job['job_id']} ({job['launcher']})")
    if last:
        lines.append(f"step    {last['step']} ({last['stage']})")
        if "reward/mean" in last:
            lines.append(f"reward  {last['reward/mean']:.3f}")
    lines.append(f"logs    {run.attempts / 'latest' / 'logs'}")
    return "\n".join(lines)


def describe_state(run: RunDir) -> str:
    """running, or how it ended and why."""
    if run.end.is_file():
        end = read_json(run.end)
        return end["state"] + (f": {end['cause']}" if end["cause"] else "")
    if is_job_alive(run):
        return "running"
    return "dead: its controller ended without a word. Next: python -m slurm_rl resume " + str(run.path)
