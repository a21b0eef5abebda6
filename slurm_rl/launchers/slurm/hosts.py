"""The nodes of the allocation: which of them the next attempt runs on, after the preflight.

That is the first srun of an attempt: can every node see the run directory and write where it must? Plain sh, outside
any container, because a node that cannot see the code cannot run Python from it.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.launchers.slurm.commands import hostnames
from slurm_rl.launchers.slurm.partitions import active_features, nodes_out_of_service
from slurm_rl.launchers.slurm.srun import run_srun, srun_argv
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.run_dir import AttemptDir, write_text

_PREFLIGHT_S = 120.0


def order_by_feature(hosts: Sequence[str], features: Mapping[str, Collection[str]], wanted: Sequence[str]) -> list[str]:
    """One host for each rank, with the feature that the rank wants.

    >>> order_by_feature(["a", "b"], {"a": {"v100"}, "b": {"h100", "ib"}}, ["h100", "v100"])
    ['b', 'a']

    Raises:
        BringUpError: a rank goes without; names what each host has.
    """
    # Hosts with few of the wanted features first, since others can take other places.
    free = sorted(hosts, key=lambda host: len(set(wanted) & set(features.get(host, ()))))
    chosen: dict[int, str] = {}
    for rank, feature in enumerate(wanted):
        host = next((host for host in free if feature in features.get(host, ())), None)
        if host is None:
            has = "; ".join(f"{host}: {','.join(sorted(features.get(host, ())))}" for host in hosts)
            raise BringUpError(
                f"the allocation must hold {wanted.count(feature)} nodes with the Slurm feature {feature}",
                seen=has,
                action="see `sinfo -o '%N %b'`, and name features of the cluster in cluster.node_features",
            )
        free.remove(host)
        chosen[rank] = host
    return [chosen[rank] for rank in range(len(wanted))]


class Hosts:
    """All nodes of a Slurm job, and those that are out of the game."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.names = hostnames(os.environ["SLURM_JOB_NODELIST"])
        self.unfit: dict[str, str] = {}
        """Host -> why; what is unfit once stays so for this start of the job."""

    @property
    def fit(self) -> list[str]:
        return [name for name in self.names if name not in self.unfit]

    @property
    def are_enough(self) -> bool:
        return len(self.fit) >= self.plan.num_nodes

    def choose(self, attempt: AttemptDir, env: Mapping[str, str]) -> list[str]:
        """Exactly as many nodes as the run needs, all of which passed the preflight.

        Raises:
            BringUpError: there are fewer; names each of the others with its trouble.
        """
        while self.are_enough:
            found = run_preflight(self.plan, attempt, self.fit, env)
            silent = [host for host in self.fit if host not in found.healthy and host not in found.problems]
            self.unfit |= found.problems | dict.fromkeys(silent, f"did not answer ({found.srun_said or 'no word'})")
            if len(found.healthy) >= self.plan.num_nodes:
                # In the order of the run's ranks, and as many as it needs.
                if wanted := self.plan.node_features:
                    return order_by_feature(found.healthy, active_features(found.healthy), wanted)
                return found.healthy[: self.plan.num_nodes]
        troubles = "; ".join(f"{host} {trouble}" for host, trouble in self.unfit.items())
        raise BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that pass the preflight",
            seen=f"{len(self.fit)} of {len(self.names)}: {troubles or ', '.join(self.names)}",
            action="exclude the node (cluster.slurm.exclude), or if all of them have the trouble, "
            "put run_dir (cluster.run_root) on a file system that every node sees",
        )

    def note_losses(self, named: list[str]) -> list[str]:
        """Take out the nodes that Slurm gave up; returns them.

        Args:
            named: those that srun named already; Slurm is asked about the others.
        """
        try:
            down = nodes_out_of_service()
        except SlurmRLError:
            down = []
        lost = [host for host in self.fit if host in named or host in down]
        self.unfit |= dict.fromkeys(lost, "was lost")
        return lost


@dataclass(frozen=True)
class Preflight:
    """What came out, by host; a host in neither did not answer."""

    healthy: list[str]
    problems: dict[str, str]
    srun_said: str
    """srun's own complaints, for when a host did not answer."""


def run_preflight(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> Preflight:
    """Check these nodes of the job, all at once."""
    canary = attempt.path / "canary"
    word = secrets.token_hex(8)
    write_text(canary, word)
    argv = [*srun_argv(plan, hosts), "/bin/sh", "-c", _script(str(canary), word, plan.tmp_root)]
    output, errors = run_srun(argv, env, _PREFLIGHT_S)
    return parse_preflight(output, errors, hosts)


def _script(canary: str, word: str, tmp_root: str) -> str:
    file, tmp = shlex.quote(canary), shlex.quote(tmp_root)
    checks = {
        f'[ "$(cat {file} 2>/dev/null)" = {word} ]': "does not see the run directory",
        f"[ -d {tmp} ] && [ -w {tmp} ]": "cannot write to cluster.tmp_root",
        "[ -d /dev/shm ] && [ -w /dev/shm ]": "has no /dev/shm to write to",
    }
    name = f"${NODE_VARIABLE}"
    lines = [f'{{ {check}; }} || {{ echo "{name}: bad {problem}"; exit 0; }}' for check, problem in checks.items()]
    return "\n".join([*lines, f'echo "{name}: ok"'])


def parse_preflight(output: str, errors: str, hosts: Sequence[str]) -> Preflight:
    """Read what the nodes said, each under its own name: srun's task numbers follow no order of ours.

    >>> parse_preflight("n2: bad cannot write\\nn1: ok\\n", "", ["n1", "n2", "n3"])
    Preflight(healthy=['n1'], problems={'n2': 'cannot write'}, srun_said='')
    """
    said = {m[1]: m[2] for m in re.finditer(r"^(\S+): (ok|bad .*)$", output, re.MULTILINE)}
    return Preflight(
        healthy=[host for host in hosts if said.get(host) == "ok"],
        problems={host: said[host][4:] for host in hosts if said.get(host, "ok") != "ok"},
        srun_said=errors,
    )
