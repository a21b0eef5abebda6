"""Questions about facts that a cluster does not reveal, with likely defaults. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.site.accounts import choose_qos, list_accounts
from slurm_rl.plugins.site.fabric import advise
from slurm_rl.plugins.site.findings import Findings
from slurm_rl.plugins.site.gpus import find_model
from slurm_rl.plugins.site.partitions import Partition, rank_partitions

NETWORKS = ("auto", "ib", "efa", "eth0")
"""Presets of conf/network for a cluster of one's own."""


@dataclass(frozen=True)
class Question:
    """One thing that the preset needs."""

    key: str
    """partition, accelerator, account, run_root, image, network, qos or runtime."""
    text: str
    """Question text; "" if the cluster reveals the answer."""
    default: str
    """Default answer; "" omits the key."""
    why: str
    """Where the default comes from."""
    choices: tuple[str, ...] = ()
    """Empty: any text."""
    is_sure: bool = False
    """The default is reported by the cluster, or harmless."""


@dataclass(frozen=True)
class Answer:
    """Answer to a question."""

    value: str
    why: str
    is_assumed: bool = False


Answers = Mapping[str, Answer]


def next_question(findings: Findings, answers: Answers) -> Question | None:
    """The first one without an answer; a later one may depend on the answers to those before it.

    Raises:
        ConfigError: no partition is open to this user.
    """
    return next((question for question in _questions(findings, answers) if question.key not in answers), None)


def _questions(findings: Findings, answers: Answers) -> Iterator[Question]:
    yield _ask_partition(findings)
    partition = findings.find_partition(answers["partition"].value)
    assert partition is not None
    yield _ask_accelerator(findings, partition)
    yield _ask_account(findings, partition)
    yield _ask_run_root(findings)
    yield _ask_image(findings)
    yield _ask_network(findings)
    # Not for the user: they follow from the answers.
    account, image = answers["account"].value, answers["image"].value
    yield _choose_qos(findings, partition, account)
    yield _choose_runtime(findings, image)


def take_default(question: Question) -> Answer:
    return Answer(question.default, question.why, is_assumed=not question.is_sure)


def take_answer(question: Question, said: str, how: str) -> Answer:
    """Return the user's answer.

    Args:
        how: source of the answer: the command line or a question.

    Raises:
        ConfigError: it is not one of the choices.
    """
    if question.choices and said not in question.choices:
        raise ConfigError(
            f"{question.key} must be one of {', '.join(question.choices)}", seen=said, action="choose one of them"
        )
    if not said.isprintable():
        raise ConfigError(f"{question.key} must be one line", seen=ascii(said), action="type it again")
    return Answer(said, how)


def _ask_partition(findings: Findings) -> Question:
    accounts = list_accounts(findings.associations)
    open_ones = [partition for partition in findings.partitions if partition.name not in findings.refused]
    ranked = rank_partitions(open_ones, accounts, findings.groups)
    if not ranked:
        seen = ", ".join(partition.name for partition in findings.partitions) or "none"
        raise ConfigError(
            "a partition must be up and open to this user",
            seen=f"{seen}, as sinfo and `scontrol show partition` show them",
            action="ask the site which partition is yours, and look at `sinfo -s`",
        )
    names = tuple(partition.name for partition in ranked)
    said = findings.environ.get("SBATCH_PARTITION", "")
    if said in names:
        return Question("partition", "", said, "SBATCH_PARTITION in the environment", names, is_sure=True)
    first = ranked[0]
    why = "the only one" if len(names) == 1 else "the default partition" if first.is_default else "the most GPUs"
    text = "Partition" if len(names) > 1 else ""
    if findings.refused:
        why = f"the likeliest, since Slurm refuses {', '.join(findings.refused)}"
        return Question("partition", text, first.name, why, names)
    return Question("partition", text, first.name, f"sinfo: {why}", names, is_sure=not text)


def _ask_accelerator(findings: Findings, partition: Partition) -> Question:
    kind, here = partition.kind, findings.own_gpus[0]
    gpu_type, name = kind.gpu_type, partition.name
    asked = Question("accelerator", "", "cpu", "", ("nvidia", "amd", "cpu"))
    if gpu_type is None:
        return replace(asked, why=f"sinfo: no GPU in the GRES of {name} ({kind.gres})", is_sure=True)
    if model := find_model(gpu_type):
        return replace(asked, default=model.accelerator, why=f"by the name of the type, {gpu_type}", is_sure=True)
    asked = replace(asked, text=f"Whose are the GPUs of {name} ({kind.gres})? cpu: the run takes none of them")
    if signed := next((found.accelerator for word in kind.features if (found := find_model(word))), None):
        return replace(asked, default=signed, why=f"by the features of the nodes, {','.join(kind.features)}")
    if here != "cpu":
        return replace(asked, default=here, why=f"as on this machine, which has {findings.own_gpus[1]}")
    if gpu_type == "":
        return replace(asked, default="nvidia", why=f"GRES has no type ({kind.gres}), and most are")
    return replace(asked, why=f"no vendor has GPUs of the type {gpu_type}; `--accelerator nvidia` or amd says whose")


def _ask_account(findings: Findings, partition: Partition) -> Question:
    if "SBATCH_ACCOUNT" in findings.environ:
        said = f"SBATCH_ACCOUNT in the environment says {findings.environ['SBATCH_ACCOUNT']}"
        return Question("account", "", "", said, is_sure=True)
    names = tuple(list_accounts(findings.associations, partition.name))
    if names:
        why = "sacctmgr: your only one here" if len(names) == 1 else f"sacctmgr: of {', '.join(names)} the default one"
        text = "Account to charge" if len(names) > 1 else ""
        return Question("account", text, names[0], why, names, is_sure=not text)
    reason = findings.failed.get("sacctmgr show user")
    why = f"sacctmgr did not say ({reason})" if reason else "sacctmgr: no account"
    # Where none is enforced, none is needed; `sbatch --test-only` has the last word.
    return Question("account", "", "", why, is_sure=True)


def _ask_run_root(findings: Findings) -> Question:
    best = findings.folders[0]
    if best.is_shared:
        place = f"{best.word}/runs" if best.word else "runs"
        return Question("run_root", "Folder for runs, which all nodes see", place, f"{best.path} is {best.kind}")
    why = f"no network file system was seen; a folder below the one you submit from ({best.kind})"
    return Question("run_root", "Folder for runs, which all nodes must see", "runs", why)


def _ask_image(findings: Findings) -> Question:
    seen = ", ".join(findings.runtimes)
    text = f"Container image, a path or a reference; empty: none ({seen} here)" if seen else ""
    why = f"none yet; {seen} here" if seen else "no container runtime was seen here"
    return Question("image", text, "", why, is_sure=True)


def _ask_network(findings: Findings) -> Question:
    if findings.fabric is None or (advice := advise(findings.fabric)) is None:
        return Question("network", "", "auto", "found on each node", NETWORKS, is_sure=True)
    seen = ", ".join([*findings.fabric.adapters, *findings.fabric.interfaces])
    return Question("network", f"Network ({seen} here)", "auto", f"{seen} here: {advice.why}", NETWORKS, is_sure=True)


def _choose_qos(findings: Findings, partition: Partition, account: str) -> Question:
    own = sorted({qos for one in findings.associations if one.account == account for qos in one.qos})
    allowed = partition.rules.get("AllowQos", "ALL")
    if "SBATCH_QOS" in findings.environ:
        why = f"SBATCH_QOS in the environment says {findings.environ['SBATCH_QOS']}"
        return Question("qos", "", "", why, is_sure=True)
    if qos := choose_qos(findings.associations, account, allowed):
        return Question("qos", "", qos, f"{partition.name} takes {allowed} (AllowQos), and of yours this one")
    why = (
        f"your default one is taken; yours: {', '.join(own)}"
        if own
        else "Slurm's default; sacctmgr shows none of yours"
    )
    return Question("qos", "", "", why, is_sure=True)


def _choose_runtime(findings: Findings, image: str) -> Question:
    names = tuple(RUNTIMES)
    seen = ", ".join(f"{name} ({where})" for name, where in findings.runtimes.items())
    if not image:
        able = [name for name in names if name in findings.runtimes]
        why = f"seen: {seen}" if seen else "no container runtime was seen here"
        action = f"; `image build container.runtime={able[0]}` makes an image for it" if able else ""
        return Question("runtime", "", "none", why + action, is_sure=True)
    for name, row in RUNTIMES.items():
        if row.image_suffix is not None and image.endswith(row.image_suffix):
            return Question(
                "runtime", "", name, f"by the end of the image's name; seen: {seen or 'none'}", is_sure=True
            )
    found = next((name for name in ("pyxis", "podman", "docker", "apptainer") if name in findings.runtimes), "pyxis")
    return Question("runtime", "", found, f"seen: {seen or 'none'}", is_sure=bool(seen))
