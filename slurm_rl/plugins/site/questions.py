"""Choices of a preset: the answer of the user or a likely default, and the source of each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.site.gpu_models import find_model
from slurm_rl.plugins.site.machine import Findings
from slurm_rl.plugins.site.slurm_facts import choose_qos, list_accounts, rank_partitions

_NETWORKS = ("auto", "ib", "efa", "eth0")
"""Presets of conf/network for a user's own cluster."""
_TRIES = 3
# Pattern of adapters and interfaces, and the network preset with its requirements; the fastest network first.
_DEVICES = (
    (r"efa_\d+|rdmap\w+", "AWS EFA (+network=efa); the image needs the aws-ofi-nccl plugin"),
    (r"hsn\d+", "Slingshot: cluster.network_interface=hsn0, and the image needs an OFI plugin of NCCL"),
    (r"mlx\d_\w+|ib\w+", "InfiniBand or RoCE; NCCL finds it by itself, +network=ib names it"),
    (r"irdma\d+|bnxt_re\w*|rocep?\w+", "RoCE; NCCL finds it by itself"),
)


@dataclass(frozen=True)
class Question:
    """One choice of the preset, with its default."""

    key: str
    default: str
    """"" omits the key."""
    why: str
    """Source of the default."""
    text: str = ""
    """Question for the user; "" if the cluster reveals the answer."""
    choices: tuple[str, ...] = ()
    """Empty: any text."""
    is_sure: bool = False
    """The default is reported by the cluster, or harmless."""

    def answer(self, text: str, why: str) -> Answer:
        """Return the user's answer, or raise ConfigError if it is not one of the choices."""
        if self.choices and text not in self.choices:
            rule = f"{self.key} must be one of {', '.join(self.choices)}"
            raise ConfigError(rule, seen=text, action="choose one of them")
        if not text.isprintable():
            raise ConfigError(f"{self.key} must be one line", seen=ascii(text), action="type it again")
        return Answer(text, why)


@dataclass(frozen=True)
class Answer:
    """A value of the preset, and its source."""

    value: str
    why: str
    is_assumed: bool = False


Answers = Mapping[str, Answer]
Asker = Callable[[Question], str | None]
"""Asks the user; "" takes the default, None is the end of the input."""


def answer_all(findings: Findings, given: Mapping[str, str], ask: Asker | None) -> dict[str, Answer]:
    """Return the answers to all questions.

    Args:
        given: answers on the command line, by key.
        ask: None takes the defaults.

    Raises:
        ConfigError: an impossible answer, or no partition is open to this user.
    """
    answers: dict[str, Answer] = {}
    for make in (_partition, _accelerator, _account, _run_root, _image, _network, _qos, _runtime):
        question = make(findings, answers)
        if question.key in given:
            answer = question.answer(given[question.key], "given on the command line")
        else:
            asked = _ask(question, ask) if ask and question.text else None
            answer = asked or Answer(question.default, question.why, is_assumed=not question.is_sure)
        answers[question.key] = answer
    return answers


def _ask(question: Question, ask: Asker) -> Answer | None:
    for _ in range(_TRIES):
        text = ask(question)
        if text is None:
            break
        if not text:
            return Answer(question.default, f"asked; {question.why}")
        try:
            return question.answer(text, "asked")
        except ConfigError as error:
            print(error, file=sys.stderr)
    return None


def ask_terminal(question: Question) -> str | None:
    """Ask on the terminal; the question goes to stderr."""
    choices = f" ({', '.join(question.choices)})" if question.choices else ""
    print(f"{question.text}{choices} [{question.default or 'none'}]: ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else None


def _partition(findings: Findings, answers: Answers) -> Question:
    usable = [partition for partition in findings.partitions if partition.name not in findings.refused]
    ranked = rank_partitions(usable, list_accounts(findings.associations), findings.groups)
    if not ranked:
        seen = ", ".join(partition.name for partition in findings.partitions) or "none"
        raise ConfigError(
            "a partition must be up and open to this user",
            seen=f"{seen}, as sinfo and `scontrol show partition` show them",
            action="ask the site which partition is yours, and look at `sinfo -s`",
        )
    names = tuple(partition.name for partition in ranked)
    chosen = findings.environ.get("SBATCH_PARTITION", "")
    if chosen in names:
        return Question("partition", chosen, "SBATCH_PARTITION in the environment", choices=names, is_sure=True)
    text, first = "Partition" if len(names) > 1 else "", ranked[0]
    if findings.refused:
        why = f"the likeliest, since Slurm refuses {', '.join(findings.refused)}"
        return Question("partition", first.name, why, text, names)
    why = "the default partition" if first.is_default else "the most GPUs"
    return Question("partition", first.name, f"sinfo: {why if text else 'the only one'}", text, names, not text)


def _accelerator(findings: Findings, answers: Answers) -> Question:
    name = answers["partition"].value
    kind, here = findings.partition(name).kind, findings.own_gpus[0]
    gpu_type, choices = kind.gpu_type, ("nvidia", "amd", "cpu")
    if gpu_type is None:
        why = f"sinfo: no GPU in the GRES of {name} ({kind.gres})"
        return Question("accelerator", "cpu", why, choices=choices, is_sure=True)
    if model := find_model(gpu_type):
        why = f"by the name of the type, {gpu_type}"
        return Question("accelerator", model.accelerator, why, choices=choices, is_sure=True)
    vendors = [model.accelerator for word in kind.features if (model := find_model(word))]
    if vendors:
        default, why = vendors[0], f"by the features of the nodes, {','.join(kind.features)}"
    elif here != "cpu":
        default, why = here, f"as on this machine, which has {findings.own_gpus[1]}"
    elif gpu_type == "":
        default, why = "nvidia", f"GRES has no type ({kind.gres}), and most are"
    else:
        default, why = "cpu", f"GRES {kind.gres} names no vendor; set it with `--accelerator nvidia` or amd"
    text = f"Vendor of the GPUs of {name} ({kind.gres}); cpu: the run takes none of them"
    return Question("accelerator", default, why, text, choices)


def _account(findings: Findings, answers: Answers) -> Question:
    if account := findings.environ.get("SBATCH_ACCOUNT"):
        return Question("account", "", f"SBATCH_ACCOUNT in the environment is {account}", is_sure=True)
    names = tuple(list_accounts(findings.associations, answers["partition"].value))
    if not names:
        reason = findings.failed.get("sacctmgr show user")
        why = f"sacctmgr did not answer ({reason})" if reason else "sacctmgr: no account"
        return Question("account", "", why, is_sure=True)
    if len(names) == 1:
        return Question("account", names[0], "sacctmgr: your only one here", choices=names, is_sure=True)
    why = f"sacctmgr: of {', '.join(names)} the default one"
    return Question("account", names[0], why, "Account to charge", names)


def _run_root(findings: Findings, answers: Answers) -> Question:
    best = findings.folders[0]
    text = "Folder for runs, shared by all nodes"
    if best.is_shared:
        return Question("run_root", f"{best.word}/runs".lstrip("/"), f"{best.path} is {best.kind}", text)
    why = f"no network file system was seen; a folder below the one you submit from ({best.kind})"
    return Question("run_root", "runs", why, text)


def _image(findings: Findings, answers: Answers) -> Question:
    seen = ", ".join(findings.runtimes)
    text = f"Container image, a path or a reference; empty: none ({seen} here)" if seen else ""
    why = f"none yet; {seen} here" if seen else "no container runtime was seen here"
    return Question("image", "", why, text, is_sure=True)


def _network(findings: Findings, answers: Answers) -> Question:
    advice = advise_network(findings.devices)
    if advice is None:
        return Question("network", "auto", "found on each node", choices=_NETWORKS, is_sure=True)
    seen = ", ".join(findings.devices)
    return Question("network", "auto", f"{seen} here: {advice}", f"Network ({seen} here)", _NETWORKS, is_sure=True)


def advise_network(devices: tuple[str, ...]) -> str | None:
    """Return the advice for the fastest device; None if there is only Ethernet.

    >>> advise_network(("mlx5_0", "eth0")), advise_network(("eno1",))
    ('InfiniBand or RoCE; NCCL finds it by itself, +network=ib names it', None)
    """
    return next((text for pattern, text in _DEVICES if any(re.fullmatch(pattern, name) for name in devices)), None)


def _qos(findings: Findings, answers: Answers) -> Question:
    partition, account = findings.partition(answers["partition"].value), answers["account"].value
    allowed = partition.rules.get("AllowQos", "ALL")
    if qos := findings.environ.get("SBATCH_QOS"):
        return Question("qos", "", f"SBATCH_QOS in the environment is {qos}", is_sure=True)
    if qos := choose_qos(findings.associations, account, allowed):
        return Question("qos", qos, f"{partition.name} takes {allowed} (AllowQos), and this one is yours")
    own = sorted({qos for one in findings.associations if one.account == account for qos in one.qos})
    why = (
        f"your default one is used; yours: {', '.join(own)}" if own else "Slurm's default; sacctmgr lists none of yours"
    )
    return Question("qos", "", why, is_sure=True)


def _runtime(findings: Findings, answers: Answers) -> Question:
    image = answers["image"].value
    seen = ", ".join(f"{name} ({where})" for name, where in findings.runtimes.items())
    question = Question("runtime", "none", f"seen: {seen or 'none'}", is_sure=True)
    if not image:
        able = next((name for name in RUNTIMES if name in findings.runtimes), None)
        action = f"; `image build container.runtime={able}` makes an image for it" if able else ""
        return replace(question, why=(question.why if seen else "no container runtime was seen here") + action)
    for name, row in RUNTIMES.items():
        if row.image_suffix is not None and image.endswith(row.image_suffix):
            return replace(question, default=name, why=f"by the suffix of the image; {question.why}")
    found = next((name for name in ("pyxis", "podman", "docker", "apptainer") if name in findings.runtimes), "pyxis")
    return replace(question, default=found, is_sure=bool(seen))
