"""The batch job: options of sbatch's command line, and a script that starts the controller.

Options are arguments, not #SBATCH lines, so that no shell interprets a name with spaces, quotes or `$()`. `%`, which
Slurm expands in file names, is escaped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from slurm_rl.errors import ConfigError
from slurm_rl.plan.container import SETUP_ACTION, SETUP_RULE
from slurm_rl.plan.node_groups import NodeGroup, list_groups

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.job import JobPlan

SbatchOptions = dict[str, str | int | bool]


def build_sbatch_options(config: RunConfig, run_dir: str) -> list[SbatchOptions]:
    """Return long option name -> value of each component of the job; True is a flag.

    With several node groups each is one component, `sbatch A : B`: a heterogeneous job whose first component has the
    options of the whole job and runs the batch script.

    Raises:
        ConfigError: Slurm would expand characters of the run directory in names of log files.
    """
    if set(run_dir) & set("%\\"):
        raise ConfigError(
            "run_dir must not contain % or backslashes, which Slurm replaces in the names of log files",
            seen=run_dir,
            action="choose another run_dir or cluster.run_root",
        )
    groups = list_groups(config) or (None,)
    return [_component(config, run_dir, group, is_first=place == 0) for place, group in enumerate(groups)]


def _component(config: RunConfig, run_dir: str, group: NodeGroup | None, *, is_first: bool) -> SbatchOptions:
    """Return the options of one component; components inherit nothing from the first."""
    cluster, job = config.cluster, config.job
    slurm, topology = cluster.slurm, cluster.topology
    gres = slurm.gres or (None if _names_gpus(slurm.extra) else _gres(cluster.gpu_type, cluster.gpus_per_node))
    options: dict[str, str | int | bool | None] = {
        "job-name": config.name,
        "nodes": cluster.num_nodes + job.num_spare_nodes,
        # The job survives a lost node; the controller continues with a spare.
        "no-kill": job.num_spare_nodes > 0,
        "ntasks-per-node": 1,
        "cpus-per-task": cluster.cpus_per_node,
        "gres": gres,
        "mem": _mem(cluster.mem_gb_per_node),
        "time": job.time_limit_min,
        # Only to the batch step (B:), which runs the controller.
        "signal": f"B:USR2@{job.planned_lead_s}",
        "requeue": True,
        "open-mode": "append",
        "output": f"{escape_percent(run_dir)}/submitit/%j_0_log.out",
        "exclusive": slurm.exclusive or None,
        "segment": topology.segment,
        "switches": topology.switches,
    }
    options |= {
        name.replace("_", "-"): value
        for name, value in slurm.model_dump(exclude={"gres", "exclusive", "extra"}).items()
    }
    options |= {name.replace("_", "-"): value for name, value in slurm.extra.items()}
    if group is not None:
        options |= _group_options(config, group)
    left_out = () if is_first else _JOB_OPTIONS
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and name not in left_out
    }


# Options of the whole job and of the batch script, which runs in the first component.
_JOB_OPTIONS = ("job-name", "signal", "open-mode", "output", "dependency", "mail-type", "mail-user", "comment")


def _group_options(config: RunConfig, group: NodeGroup) -> dict[str, str | int | bool | None]:
    own = config.cluster.nodes[group.name]
    options: dict[str, str | int | bool | None] = {
        "nodes": group.count,
        "cpus-per-task": group.cpus_per_node,
        "gres": _gres(own.gpu_type or config.cluster.gpu_type, group.gpus_per_node),
        "mem": _mem(group.mem_gb_per_node),
        "constraint": own.constraint or (None if own.is_selected else group.name),
    }
    return options | ({"partition": own.partition} if own.partition else {})


def _mem(gigabytes: int | Literal["all"] | None) -> str | None:
    """Return the value of --mem; 0 is all memory of a node."""
    return "0" if gigabytes == "all" else f"{gigabytes}G" if gigabytes else None


def _names_gpus(extra: Mapping[str, object]) -> bool:
    """Return whether `extra` requests GPUs; sites accept --gres or --gpus-per-node."""
    return any(name.replace("_", "-") in ("gpus", "gpus-per-node", "gpus-per-task") for name in extra)


def _gres(gpu_type: str | None, gpus_per_node: int) -> str | None:
    kind = f":{gpu_type}" if gpu_type else ""
    return f"gpu{kind}:{gpus_per_node}" if gpus_per_node else None


def escape_percent(path: str) -> str:
    """Return a file name that Slurm uses literally."""
    return path.replace("%", "%%")


def sbatch_argv(options: SbatchOptions) -> list[str]:
    """Return the options as arguments."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]


def submission_argv(plan: JobPlan) -> list[str]:
    """Return the options of all components: `--nodes=2 ... : --nodes=1 ...`."""
    first, *others = (sbatch_argv(options) for options in (plan.sbatch, *plan.het))
    return first + [word for other in others for word in (":", *other)]


def render_batch_script(plan: JobPlan, command: str, *, end: str | None = None) -> str:
    """Return the script that Slurm runs on the first node: setup lines, then the controller.

    If Python cannot start, the script writes the cause to end.json, the job's log and the job's comment, which `status`
    reads if the node does not see the run directory. `exec` makes the controller the process that Slurm signals.

    Args:
        end: shell word for end.json if it is not in plan.run_dir.
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
        # Otherwise `-m` searches the working directory, often a checkout, before the snapshot.
        "export PYTHONSAFEPATH=1",
        "export SUBMITIT_EXECUTOR=slurm",
        _or_fail(
            f"{python} -c {shlex.quote(_FIND_MODULES)}",
            f"the interpreter must start and have the packages that slurm_rl needs; {plan.host_python} does not. "
            "Next: see `logs --who job`, and install slurm_rl there",
        ),
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


# Finding a module is a hundred times faster than importing it.
_FIND_MODULES = (
    "import importlib.util as u, sys; "
    'm = [n for n in ("pydantic", "submitit", "yaml") if u.find_spec(n) is None]; '
    'sys.exit("missing: " + " ".join(m) if m else 0)'
)
# $1 is a cause, escaped for a JSON string; a folder may need escaping, a node name does not.
_FAIL = """fail() {{
  cause="$1 [$(uname -n)]" end={end}
  [ -d "${{SLURM_SUBMIT_DIR:-/}}" ] || cause="$cause (submitted from $(printf %s "$SLURM_SUBMIT_DIR" |
    tr '[:cntrl:]' ' ' | sed 's/[\\\\"]/\\\\&/g'), which this node does not have, so that it ran in $PWD)"
  echo "slurm_rl: $cause" >&2
  printf '{{"state": "failed", "exit_code": 2, "cause": "%s", "step": -1}}\\n' "$cause" > "$end.part"
  mv "$end.part" "$end"
  scontrol update JobId="$SLURM_JOB_ID" Comment="slurm_rl: $cause" 2> /dev/null
  exit 2
}}"""


def _or_fail(check: str, cause: str) -> str:
    return f"{check} || fail {shlex.quote(json.dumps(cause)[1:-1])}"


def controller_command(plan: JobPlan, host_python: str) -> str:
    """Return the shell command with which submitit starts the controller."""
    folder = shlex.quote(f"{plan.run_dir}/submitit")
    return f"{shlex.quote(host_python)} -u -m submitit.core._submit {folder}"


def render_submission(plan: JobPlan) -> str:
    """Return the command line and script of `submit` as text."""
    argv = shlex.join(["sbatch", *submission_argv(plan), "<script>"])
    return f"{argv}\n\n{render_batch_script(plan, controller_command(plan, plan.host_python))}".rstrip()
