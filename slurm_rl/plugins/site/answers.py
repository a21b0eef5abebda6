"""Choices of a preset: a flag of the user or a likely default, and the source of each."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.site.gpu_models import find_model
from slurm_rl.plugins.site.machine import Findings
from slurm_rl.plugins.site.slurm_facts import rank_partitions

KEYS = ("partition", "accelerator", "account", "run_root", "image", "network")
"""Flags of the command."""


@dataclass(frozen=True)
class Answer:
    """A value of the preset, and its source."""

    value: Any
    """Empty for the default."""
    why: str
    is_assumed: bool = False


Answers = Mapping[str, Answer]


def choose_answers(findings: Findings, given: Mapping[str, str]) -> dict[str, Answer]:
    """Return a value for each key, and the container runtime.

    Args:
        given: values of flags, by key.

    Raises:
        ConfigError: an impossible value, or no partition is up.
    """
    choices = {
        "partition": tuple(partition.name for partition in findings.partitions),
        "accelerator": ("nvidia", "amd", "cpu"),
        "network": ("auto", "ib", "efa", "eth0"),
    }
    for key, value in given.items():
        if value not in choices.get(key, (value,)):
            rule = f"{key} must be one of {', '.join(choices[key])}"
            raise ConfigError(rule, seen=value, action="choose one of them")
        if not value.isprintable():
            raise ConfigError(f"{key} must be one line", seen=ascii(value), action="type it again")
    answers = {key: Answer(value, "given on the command line") for key, value in given.items()}
    answers.setdefault("partition", _choose_partition(findings))
    answers.setdefault("accelerator", _choose_accelerator(findings, answers["partition"].value))
    answers.setdefault("account", Answer("", "Slurm's default account; --account names another"))
    answers.setdefault("run_root", _choose_run_root(findings))
    seen = ", ".join(findings.runtimes) or "no container runtime"
    answers.setdefault("image", Answer("", f"none; seen here: {seen}"))
    answers.setdefault("network", Answer("auto", "found on each node"))
    return {**answers, "runtime": _choose_runtime(findings, answers["image"].value)}


def _choose_partition(findings: Findings) -> Answer:
    ranked = rank_partitions(findings.partitions)
    if not ranked:
        raise ConfigError(
            "a partition must be up",
            seen=", ".join(partition.name for partition in findings.partitions) or "no partition",
            action="see sinfo -s, or name one with --partition",
        )
    chosen = os.environ.get("SBATCH_PARTITION", "")
    if chosen in (partition.name for partition in findings.partitions):
        return Answer(chosen, "SBATCH_PARTITION in the environment")
    first = ranked[0]
    why = "sinfo: the default partition" if first.is_default else "sinfo: the most GPUs"
    return Answer(first.name, why, is_assumed=len(findings.partitions) > 1)


def _choose_accelerator(findings: Findings, partition: str) -> Answer:
    kind = findings.partition(partition).kind
    if kind.gpu_type is None:
        return Answer("cpu", f"sinfo: no GPU in the GRES of {partition} ({kind.gres})")
    if model := find_model(kind.gpu_type):
        return Answer(model.accelerator, f"by the name of the type, {kind.gpu_type}")
    if kind.gpu_type == "":
        return Answer("nvidia", f"GRES has no type ({kind.gres}), and most are", is_assumed=True)
    why = f"GRES {kind.gres} names no vendor; set it with `--accelerator nvidia` or amd"
    return Answer("cpu", why, is_assumed=True)


def _choose_run_root(findings: Findings) -> Answer:
    best = findings.folders[0]
    if best.is_shared:
        return Answer(f"{best.word}/runs".lstrip("/"), f"{best.path} is {best.kind}", is_assumed=True)
    why = f"no network file system was seen; a folder below the one you submit from ({best.kind})"
    return Answer("runs", why, is_assumed=True)


def _choose_runtime(findings: Findings, image: str) -> Answer:
    if not image:
        return Answer("none", "no image")
    for name, row in RUNTIMES.items():
        if row.image_suffix is not None and image.endswith(row.image_suffix):
            return Answer(name, "by the suffix of the image")
    return Answer(next(iter(findings.runtimes), "pyxis"), "seen here", is_assumed=not findings.runtimes)
