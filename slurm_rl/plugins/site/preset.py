"""Render the preset, with the source of each value in a comment above it. Pure."""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from slurm_rl.plugins.site.answers import Answer, Answers
from slurm_rl.plugins.site.gpu_models import find_model
from slurm_rl.plugins.site.machine import Findings
from slurm_rl.plugins.site.slurm_facts import NodeKind, Partition

_WIDTH = 118
_DAY_MIN = 24 * 60
_OBJECT_STORE_GB = 32
_CPUS, _MEM_GB = 8, 16
"""Request on a shared node without GPUs."""
_INTERNET = (
    "cluster.internet: unknown, since only a job could try. If the nodes reach no hub, add `internet: false` below "
    "`cluster`; then models and data must be local files, and `plan` refuses others."
)


Line = tuple[str, Answer]
"""A key of the preset, dotted, and its value."""


@dataclass(frozen=True)
class Preset:
    """The text of a preset, and the keys with assumed values."""

    text: str
    assumed: tuple[str, ...]


def build_preset(findings: Findings, answers: Answers, header: Sequence[str]) -> Preset:
    """Return the content of `<folder>/cluster/<name>.yaml`; it begins with the header as a comment."""
    lines = list(_lines(findings, answers, findings.partition(answers["partition"].value)))
    tree: dict[str, Any] = {}
    if (network := answers["network"].value) != "auto":
        tree["defaults"] = ["_self_", {"override /network": network}]
    for key, answer in lines:
        *sections, name = key.split(".")
        section = tree
        for one in sections:
            section = section.setdefault(one, {})
        section[name] = None if answer.value == "" else answer.value
    comments = [*header, *(f"{key}: {'assumed: ' * answer.is_assumed}{answer.why}" for key, answer in lines)]
    parts = ["# @package _global_", *(part for text in comments for part in _wrap(text))]
    parts += _wrap(_INTERNET)
    body = yaml.safe_dump(tree, sort_keys=False, width=10**6)
    return Preset("\n".join([*parts, body]), tuple(key for key, answer in lines if answer.is_assumed))


def _lines(findings: Findings, answers: Answers, partition: Partition) -> Iterator[Line]:
    on_gpus = answers["accelerator"].value != "cpu"
    yield "cluster.launcher", Answer("slurm", f"sinfo answers on {findings.host}")
    yield "cluster.accelerator", answers["accelerator"]
    yield from _gpu_lines(partition.kind, answers["accelerator"]) if on_gpus else _cpu_lines(partition.kind)
    kind = partition.kind
    alike = [one for one in partition.kinds if (one.gpu_type, one.num_gpus) == (kind.gpu_type, kind.num_gpus)]
    total, usable = sum(one.num_nodes for one in alike), sum(one.num_usable for one in alike)
    count = f"{partition.name} has {total} such nodes, of which {usable} take jobs now"
    yield "cluster.num_nodes", Answer(1, f"to begin with; {count}", is_assumed=True)
    yield "cluster.run_root", answers["run_root"]
    yield "cluster.tmp_root", Answer("/tmp", "local to each node; the nodes were not inspected", is_assumed=True)
    python = f"the Python of the command, {sys.executable}, which the nodes must have"
    yield "cluster.python", Answer(None, "python3 of the image" if answers["image"].value else python)
    yield "cluster.slurm.partition", answers["partition"]
    yield "cluster.slurm.account", answers["account"]
    why = "whole nodes with all of their GPUs" if on_gpus else "other jobs may use the rest of a node"
    yield "cluster.slurm.exclusive", Answer(on_gpus, why)
    yield "container.runtime", answers["runtime"]
    yield "container.image", answers["image"]
    yield _time_line(partition)
    yield "job.max_failures", Answer(3, "attempts that may fail before a run gives up, as in the shipped presets")
    if on_gpus:
        memory = kind.mem_mb / 1024
        store = max(2, min(_OBJECT_STORE_GB, int(memory / 8)))
        yield "ray.object_store_gb", Answer(store, f"of the {memory:.0f} GB of a node, in /dev/shm")


def _gpu_lines(kind: NodeKind, accelerator: Answer) -> Iterator[Line]:
    gpu_type = kind.gpu_type or ""
    yield "cluster.gpu_type", Answer(gpu_type or None, f"GRES of its nodes: {kind.gres}")
    yield "cluster.gpus_per_node", Answer(kind.num_gpus, f"all of a node: {kind.gres}")
    model = find_model(gpu_type)
    if model is None or model.mem_gb is None or model.accelerator != accelerator.value:
        yield "cluster.gpu_mem_gb", Answer(None, "unknown, so memory is not estimated; doctor shows it")
    else:
        why = f"by the name of the type, {gpu_type}; doctor shows whether it has more"
        yield "cluster.gpu_mem_gb", Answer(model.mem_gb, why, is_assumed=True)
    yield "cluster.cpus_per_node", Answer(None, f"all {kind.cpus} of a node, since it is exclusive")
    yield "cluster.mem_gb_per_node", Answer("all", f"all {kind.mem_mb // 1024} GB of a node (--mem=0)")


def _cpu_lines(kind: NodeKind) -> Iterator[Line]:
    has = f"a node has {kind.cpus} CPUs and {kind.mem_mb // 1024} GB (sinfo)"
    yield "cluster.gpus_per_node", Answer(0, "none are taken")
    yield "cluster.cpus_per_node", Answer(min(_CPUS, kind.cpus), has, is_assumed=True)
    yield "cluster.mem_gb_per_node", Answer(max(1, min(_MEM_GB, kind.mem_mb // 1024)), has, is_assumed=True)


def _time_line(partition: Partition) -> Line:
    limit = partition.max_time_min
    minutes = _DAY_MIN if limit is None else min(_DAY_MIN, limit)
    why = f"{partition.name} has {'no limit' if limit is None else f'a limit of {render_minutes(limit)}'}"
    return "job.time_limit", Answer(render_minutes(minutes), why, is_assumed=limit is None or limit > _DAY_MIN)


def render_minutes(minutes: int) -> str:
    """Return a time limit in Slurm's notation.

    >>> render_minutes(2880), render_minutes(90)
    ('2-00:00:00', '0-01:30:00')
    """
    return f"{minutes // _DAY_MIN}-{minutes % _DAY_MIN // 60:02}:{minutes % 60:02}:00"


def _wrap(text: str) -> list[str]:
    """Return comment lines, without line breaks and terminal control characters: the text comes from the site."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return textwrap.wrap(printable.strip(), _WIDTH, initial_indent="# ", subsequent_indent="#   ")
