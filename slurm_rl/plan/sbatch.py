"""The batch job as sbatch gets it: options for its command line, and a script that only starts the controller.

Options travel as arguments, never as #SBATCH lines: a name with spaces, quotes or `$()` is one argument,
and no shell reads it. Values that Slurm itself expands (`%` in file names) are escaped here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError
from slurm_rl.plan.container import SETUP_ACTION, SETUP_RULE

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.job import JobPlan

SbatchOptions = dict[str, str | int | bool]


def build_sbatch_options(config: RunConfig, run_dir: str) -> SbatchOptions:
    """Long option name -> value; True is a flag without one.

    Raises:
        ConfigError: a run directory that Slurm would change in the names of log files.
    """
    if set(run_dir) & set("%\\"):
        raise ConfigError(
            "run_dir must hold no % and no backslash, which Slurm replaces in the names of log files",
            seen=run_dir,
            action="choose another run_dir or cluster.run_root",
        )
    cluster, job = config.cluster, config.job
    slurm = cluster.slurm
    options: dict[str, str | int | bool | None] = {
        "job-name": config.name,
        "nodes": cluster.num_nodes + job.num_spare_nodes,
        # The job outlives the loss of a node; the controller goes on with a spare one.
        "no-kill": job.num_spare_nodes > 0,
        "ntasks-per-node": 1,
        "cpus-per-task": cluster.cpus_per_node,
        "gres": slurm.gres or (None if _names_gpus(slurm.extra) else _gres(config)),
        # 0 is all of a node's memory.
        "mem": f"{cluster.mem_gb_per_node}G" if cluster.mem_gb_per_node else "0",
        "time": job.time_limit_min,
        # To the batch step alone (B:), where the controller is; it tells the others.
        "signal": f"B:USR2@{job.signal_lead_s}",
        "requeue": True,
        "open-mode": "append",
        "output": f"{escape_percent(run_dir)}/submitit/%j_0_log.out",
        "exclusive": slurm.exclusive or None,
    }
    options |= {
        name.replace("_", "-"): value
        for name, value in slurm.model_dump(exclude={"gres", "exclusive", "extra"}).items()
    }
    options |= {name.replace("_", "-"): value for name, value in slurm.extra.items()}
    if cluster.node_features:
        counts = "&".join(f"{name}*{count}" for name, count in cluster.node_features.items())
        options["constraint"] = f"[{counts}]"
    return {name: value for name, value in options.items() if value is not None and value is not False}


def _names_gpus(extra: Mapping[str, object]) -> bool:
    """Whether the user asks for GPUs in the other way: sites take --gres or --gpus-per-node."""
    return any(name.replace("_", "-") in ("gpus", "gpus-per-node", "gpus-per-task") for name in extra)


def _gres(config: RunConfig) -> str | None:
    cluster = config.cluster
    if cluster.gpus_per_node == 0:
        return None
    kind = f":{cluster.gpu_type}" if cluster.gpu_type else ""
    return f"gpu{kind}:{cluster.gpus_per_node}"


def escape_percent(path: str) -> str:
    """A file name that Slurm takes literally."""
    return path.replace("%", "%%")


def sbatch_argv(options: SbatchOptions) -> list[str]:
    """Options as arguments, each one word."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]


def render_batch_script(plan: JobPlan, command: str, *, end: str | None = None) -> str:
    """The script that Slurm stores and runs on the first node: setup lines, then the controller.

    What keeps Python from starting is written down by the script itself: in end.json, in the job's log, and in the
    job's comment, which `status` reads also where the node does not see the run directory. `exec` makes the controller
    the batch step's own process, which is whom Slurm signals.

    Args:
        end: end.json of the run as a word of shell, where that is not below plan.run_dir.
    """
    code, python = shlex.quote(f"{plan.run_dir}/code"), shlex.quote(plan.host_python)
    lines = [
        "#!/bin/bash",
        f"# slurm_rl {plan.slurm_rl_version}",
        _FAIL.format(end=end or shlex.quote(f"{plan.run_dir}/end.json")),
        _or_fail(
            f"[ -d {code}/slurm_rl ]",
            f"the run directory must be seen by every node; {plan.run_dir} is not. "
            "Next: put cluster.run_root on a file system that all nodes share",
        ),
        *(_or_fail(f"{{ {line}\n}}", f"{SETUP_RULE} {line}. {SETUP_ACTION}") for line in plan.setup),
        _or_fail(
            f"command -v {python} > /dev/null",
            f"the interpreter must be there on every node; {plan.host_python} is not. "
            "Next: submit from an environment on a file system that all nodes share",
        ),
        f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}",
        # `-m` would otherwise look into the working directory, often a checkout, before the snapshot.
        "export PYTHONSAFEPATH=1",
        "export SUBMITIT_EXECUTOR=slurm",
        _or_fail(
            f"{python} -c {shlex.quote(_FIND_MODULES)}",
            f"the interpreter must start and have what slurm_rl needs; {plan.host_python} does not. "
            "Next: see `logs --who job`, and install slurm_rl there",
        ),
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


# Finding a module takes a hundredth of what importing it does.
_FIND_MODULES = (
    "import importlib.util as u, sys; "
    'm = [n for n in ("pydantic", "submitit", "yaml") if u.find_spec(n) is None]; '
    'sys.exit("missing: " + " ".join(m) if m else 0)'
)
# $1 is a cause, escaped for a JSON string. A node has no spaces and quotes in its name.
_FAIL = """fail() {{
  cause="$1 [$(uname -n)]" end={end}
  echo "slurm_rl: $cause" >&2
  printf '{{"state": "failed", "exit_code": 2, "cause": "%s", "step": -1}}\\n' "$cause" > "$end.part"
  mv "$end.part" "$end"
  scontrol update JobId="$SLURM_JOB_ID" Comment="slurm_rl: $cause" 2> /dev/null
  exit 2
}}"""


def _or_fail(check: str, cause: str) -> str:
    return f"{check} || fail {shlex.quote(json.dumps(cause)[1:-1])}"


def controller_command(plan: JobPlan, host_python: str) -> str:
    """The shell command that submitit runs the controller by."""
    folder = shlex.quote(f"{plan.run_dir}/submitit")
    return f"{shlex.quote(host_python)} -u -m submitit.core._submit {folder}"


def render_submission(plan: JobPlan) -> str:
    """What `submit` would run, for people: the command line and the script."""
    argv = shlex.join(["sbatch", *sbatch_argv(plan.sbatch), "<script>"])
    return f"{argv}\n\n{render_batch_script(plan, controller_command(plan, plan.host_python))}".rstrip()
