"""The batch job as sbatch gets it: options for its command line, and a script that only starts the controller.

Options travel as arguments, never as #SBATCH lines: a name with spaces, quotes or `$()` is one argument,
and no shell reads it. Values that Slurm itself expands (`%` in file names) are escaped here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from slurm_rl.errors import ConfigError
from slurm_rl.plan.container import SETUP_ACTION, SETUP_RULE
from slurm_rl.plan.kinds import NodeKind, list_kinds

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.job import JobPlan

SbatchOptions = dict[str, str | int | bool]


def build_sbatch_options(config: RunConfig, run_dir: str) -> list[SbatchOptions]:
    """Of each component of the job, long option name -> value; True is a flag without one.

    There is one component where all nodes are alike. Where they are of several kinds each has its own: `sbatch A : B`,
    a heterogeneous job, whose batch script runs in the first. The first has what concerns the job as a whole.

    Raises:
        ConfigError: a run directory that Slurm would change in the names of log files.
    """
    if set(run_dir) & set("%\\"):
        raise ConfigError(
            "run_dir must hold no % and no backslash, which Slurm replaces in the names of log files",
            seen=run_dir,
            action="choose another run_dir or cluster.run_root",
        )
    kinds = list_kinds(config) or (None,)
    return [_component(config, run_dir, kind, is_first=place == 0) for place, kind in enumerate(kinds)]


def _component(config: RunConfig, run_dir: str, kind: NodeKind | None, *, is_first: bool) -> SbatchOptions:
    """Each says everything for itself, since Slurm hands nothing on from the first.

    Args:
        kind: None where all nodes are alike.
    """
    cluster, job = config.cluster, config.job
    slurm, topology = cluster.slurm, cluster.topology
    gres = slurm.gres or (None if _names_gpus(slurm.extra) else _gres(cluster.gpu_type, cluster.gpus_per_node))
    options: dict[str, str | int | bool | None] = {
        "job-name": config.name,
        "nodes": cluster.num_nodes + job.num_spare_nodes,
        # The job outlives the loss of a node; the controller goes on with a spare one.
        "no-kill": job.num_spare_nodes > 0,
        "ntasks-per-node": 1,
        "cpus-per-task": cluster.cpus_per_node,
        "gres": gres,
        "mem": _mem(cluster.mem_gb_per_node),
        "time": job.time_limit_min,
        # To the batch step alone (B:), where the controller is; it tells the others.
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
    if kind is not None:
        options |= _of_a_kind(config, kind)
    left_out = () if is_first else _OF_THE_JOB
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and name not in left_out
    }


# What concerns the job as a whole, and the batch script, which runs in the first component.
_OF_THE_JOB = ("job-name", "signal", "open-mode", "output", "dependency", "mail-type", "mail-user", "comment")


def _of_a_kind(config: RunConfig, kind: NodeKind) -> dict[str, str | int | bool | None]:
    own = config.cluster.nodes[kind.name]
    found: dict[str, str | int | bool | None] = {
        "nodes": kind.count,
        "cpus-per-task": kind.cpus_per_node,
        "gres": _gres(own.gpu_type or config.cluster.gpu_type, kind.gpus_per_node),
        "mem": _mem(kind.mem_gb_per_node),
        "constraint": own.constraint or (None if own.is_told_apart else kind.name),
    }
    return found | ({"partition": own.partition} if own.partition else {})


def _mem(gigabytes: int | Literal["all"] | None) -> str | None:
    """Return the value of --mem, where 0 is all of a node's memory."""
    return "0" if gigabytes == "all" else f"{gigabytes}G" if gigabytes else None


def _names_gpus(extra: Mapping[str, object]) -> bool:
    """Whether the user asks for GPUs in the other way: sites take --gres or --gpus-per-node."""
    return any(name.replace("_", "-") in ("gpus", "gpus-per-node", "gpus-per-task") for name in extra)


def _gres(gpu_type: str | None, gpus_per_node: int) -> str | None:
    kind = f":{gpu_type}" if gpu_type else ""
    return f"gpu{kind}:{gpus_per_node}" if gpus_per_node else None


def escape_percent(path: str) -> str:
    """A file name that Slurm takes literally."""
    return path.replace("%", "%%")


def sbatch_argv(options: SbatchOptions) -> list[str]:
    """Options as arguments, each one word."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]


def submission_argv(plan: JobPlan) -> list[str]:
    """The options of all components, as sbatch takes them: `--nodes=2 ... : --nodes=1 ...`."""
    first, *others = (sbatch_argv(options) for options in (plan.sbatch, *plan.het))
    return first + [word for other in others for word in (":", *other)]


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
# $1 is a cause, escaped for a JSON string. A node has no spaces and quotes in its name; a folder may.
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
    """The shell command that submitit runs the controller by."""
    folder = shlex.quote(f"{plan.run_dir}/submitit")
    return f"{shlex.quote(host_python)} -u -m submitit.core._submit {folder}"


def render_submission(plan: JobPlan) -> str:
    """What `submit` would run, for people: the command line and the script."""
    argv = shlex.join(["sbatch", *submission_argv(plan), "<script>"])
    return f"{argv}\n\n{render_batch_script(plan, controller_command(plan, plan.host_python))}".rstrip()
