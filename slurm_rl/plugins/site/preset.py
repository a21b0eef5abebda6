"""From what was found and answered to the text of a preset, with a comment at each line. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from slurm_rl.plugins.site.findings import Findings
from slurm_rl.plugins.site.gpus import find_model
from slurm_rl.plugins.site.partitions import NodeKind, Partition
from slurm_rl.plugins.site.questions import Answer, Answers

_WIDTH = 118
_SHOWN, _KINDS = 12, 3
"""Partitions and features that a comment names at the most, and kinds of nodes of a partition."""
_LEFT_OUT = object()
"""The value of a key that stands in the preset as a comment alone."""
_DAY_MIN = 24 * 60
# For what the GPUs' weights pass through, where they go by ray; the shipped presets have as much.
_OBJECT_STORE_GB = 32
# Of a node without GPUs, which others share: tiny models, tests.
_CPUS, _MEM_GB = 8, 16


@dataclass(frozen=True)
class Line:
    """A key of the preset."""

    key: str
    """Dotted."""
    value: object
    why: str
    is_assumed: bool = False


@dataclass(frozen=True)
class Preset:
    text: str
    assumed: tuple[str, ...]
    """Keys whose values were guessed."""


def build_preset(findings: Findings, answers: Answers, header: Sequence[str]) -> Preset:
    """The file for `<folder>/cluster/<name>.yaml`.

    Args:
        header: lines of its first comment.
    """
    partition = findings.find_partition(answers["partition"].value)
    assert partition is not None
    lines = list(_lines(findings, answers, partition))
    comments = [*header, *_describe_partitions(findings), *_describe_failures(findings)]
    parts = ["# @package _global_", *(part for text in comments for part in _fold(text, ""))]
    network = answers["network"]
    if network.value != "auto":
        parts += ["defaults:", "  - _self_", *_render(f"  - override /network: {network.value}", network.why)]
    parts += _render_tree(lines)
    return Preset("\n".join(parts) + "\n", tuple(line.key for line in lines if line.is_assumed))


def _lines(findings: Findings, answers: Answers, partition: Partition) -> Iterator[Line]:
    on_gpus = answers["accelerator"].value != "cpu"
    yield Line("cluster.launcher", "slurm", f"{findings.version} answers on {findings.host}")
    yield _answered("cluster.accelerator", answers["accelerator"])
    yield from _gpu_lines(partition.kind, answers["accelerator"]) if on_gpus else _cpu_lines(partition.kind)
    yield Line("cluster.num_nodes", 1, f"to begin with; {_count(partition)}", is_assumed=True)
    yield _answered("cluster.run_root", answers["run_root"])
    yield Line("cluster.tmp_root", "/tmp", _explain_tmp(findings), is_assumed=True)
    yield Line("cluster.python", None, _explain_python(findings, answers["image"].value))
    # Set here, even to null, it would win over +network=... on a command line.
    yield Line("cluster.network_interface", _LEFT_OUT, answers["network"].why)
    yield Line("cluster.setup", [], 'shell lines on each node first, such as "module load cuda"; none is known')
    yield Line("cluster.env", {}, "variables of all processes; none is needed so far")
    yield _answered("cluster.slurm.partition", answers["partition"])
    yield _answered("cluster.slurm.account", answers["account"])
    yield _answered("cluster.slurm.qos", answers["qos"])
    yield Line("cluster.slurm.constraint", None, _explain_features(partition))
    why = "whole nodes: all GPUs of each are taken" if on_gpus else "others may use the rest of a node"
    yield Line("cluster.slurm.exclusive", on_gpus, why)
    yield Line("container.runtime", answers["runtime"].value, answers["runtime"].why)
    yield _answered("container.image", answers["image"])
    yield _time_line(partition)
    yield Line("job.max_failures", 3, "attempts that may fail before a run gives up, as in the shipped presets")
    if on_gpus:
        memory = partition.kind.mem_mb / 1024
        store = max(2, min(_OBJECT_STORE_GB, int(memory / 8)))
        yield Line("ray.object_store_gb", store, f"of the {memory:.0f} GB of a node, in /dev/shm")


def _answered(key: str, answer: Answer) -> Line:
    return Line(key, answer.value or None, answer.why, answer.is_assumed)


def _gpu_lines(kind: NodeKind, accelerator: Answer) -> Iterator[Line]:
    gpu_type = kind.gpu_type or ""
    yield Line("cluster.gpu_type", gpu_type or None, f"GRES of its nodes: {kind.gres}")
    yield Line("cluster.gpus_per_node", kind.num_gpus, f"all of a node: {kind.gres}")
    model = find_model(gpu_type)
    mem_gb = model.mem_gb if model is not None and model.accelerator == accelerator.value else None
    if model is None or mem_gb is None:
        yield Line("cluster.gpu_mem_gb", None, "unknown, so what fits is not estimated; doctor shows what they have")
    elif model.other_mem_gb is not None:
        why = f"{gpu_type} is sold with {mem_gb} and with {model.other_mem_gb} GB; doctor shows which"
        yield Line("cluster.gpu_mem_gb", mem_gb, why, is_assumed=True)
    else:
        yield Line("cluster.gpu_mem_gb", mem_gb, f"by the name of the type, {gpu_type}")
    yield Line("cluster.cpus_per_node", None, f"all {kind.cpus} of a node, since it is exclusive")
    yield Line("cluster.mem_gb_per_node", "all", f"all {kind.mem_mb // 1024} GB of a node (--mem=0)")


def _cpu_lines(kind: NodeKind) -> Iterator[Line]:
    has = f"a node has {kind.cpus} CPUs and {kind.mem_mb // 1024} GB (sinfo)"
    yield Line("cluster.gpus_per_node", 0, "none are taken")
    yield Line("cluster.cpus_per_node", min(_CPUS, kind.cpus), has, is_assumed=True)
    yield Line("cluster.mem_gb_per_node", max(1, min(_MEM_GB, kind.mem_mb // 1024)), has, is_assumed=True)


def _count(partition: Partition) -> str:
    kind = partition.kind
    fit = [
        one
        for one in partition.kinds
        if (one.gpu_type, one.num_gpus) == (kind.gpu_type, kind.num_gpus)
        and one.cpus >= kind.cpus
        and one.mem_mb >= kind.mem_mb
    ]
    total, usable = sum(one.num_nodes for one in fit), sum(one.num_usable for one in fit)
    return f"{partition.name} has {total} such {_nodes(total)}, of which {usable} take jobs now"


def _time_line(partition: Partition) -> Line:
    limit = partition.max_time_min
    minutes = _DAY_MIN if limit is None else min(_DAY_MIN, limit)
    default = partition.rules.get("DefaultTime", "NONE")
    said = "no limit" if limit is None else f"{render_minutes(limit)} at the most"
    why = f"{partition.name} has {said}" + ("" if default in ("NONE", "") else f", {default} by default")
    return Line("job.time_limit", render_minutes(minutes), why, is_assumed=limit is None or limit > _DAY_MIN)


def render_minutes(minutes: int) -> str:
    """A time limit as Slurm writes it.

    >>> render_minutes(2880), render_minutes(90)
    ('2-00:00:00', '0-01:30:00')
    """
    return f"{minutes // _DAY_MIN}-{minutes % _DAY_MIN // 60:02}:{minutes % 60:02}:00"


def _explain_tmp(findings: Findings) -> str:
    said = findings.settings.get("TmpFS", "")
    other = f"; TmpFS of slurm.conf is {said}" if said not in ("", "/tmp", "(null)") else ""
    return f"each node's own; the nodes were not looked at{other}"


def _explain_python(findings: Findings, image: str) -> str:
    python = findings.python
    if image:
        return "python3 of the image"
    if python is None:
        return "the one that types the command"
    seen = f"{python.path} ({python.kind})"
    if python.local is not None:
        return f"the one that types the command; {seen} is {python.local}: the nodes may not have it"
    return f"the one that types the command: {seen}" + ("" if python.is_shared else "; the nodes must have it, too")


def _explain_features(partition: Partition) -> str:
    names = sorted({name for kind in partition.kinds for name in kind.features})
    if not names:
        return "its nodes have no features"
    more = " ..." if len(names) > _SHOWN else ""
    return f"features of its nodes: {', '.join(names[:_SHOWN])}{more}"


def _describe_partitions(findings: Findings) -> Iterator[str]:
    yield "Partitions that sinfo shows:"
    for partition in findings.partitions[:_SHOWN]:
        star = "*" if partition.is_default else ""
        limit = "no limit" if partition.max_time_min is None else render_minutes(partition.max_time_min)
        counts: Counter[str] = Counter()
        for kind in partition.kinds:
            counts[f"of {kind.cpus} CPUs, {kind.mem_mb // 1024} GB, GRES {kind.gres}"] += kind.num_nodes
        kinds = "; ".join(f"{count} {_nodes(count)} {of}" for of, count in counts.most_common(_KINDS))
        more = f"; {len(counts) - _KINDS} kinds more" if len(counts) > _KINDS else ""
        down = "" if partition.is_up else ", down"
        yield f"  {partition.name}{star} ({limit}{down}): {kinds}{more}"
    if len(findings.partitions) > _SHOWN:
        yield f"  and {len(findings.partitions) - _SHOWN} more"


def _nodes(count: int) -> str:
    return "node" if count == 1 else "nodes"


def _describe_failures(findings: Findings) -> Iterator[str]:
    for name, why in findings.refused.items():
        yield f"Slurm takes no job in {name}: {why}"
    for what, why in findings.failed.items():
        yield f"No answer from `{what}`: {why}"


def _render_tree(lines: Sequence[Line]) -> Iterator[str]:
    """YAML, sections opened as their first key comes; keys of a section stand together."""
    opened: list[str] = []
    for line in lines:
        *sections, name = line.key.split(".")
        depth = next((i for i, (a, b) in enumerate(zip(opened, sections, strict=False)) if a != b), None)
        keep = min(len(opened), len(sections)) if depth is None else depth
        for level in range(keep, len(sections)):
            yield f"{'  ' * level}{sections[level]}:"
        opened = sections
        if line.value is _LEFT_OUT:
            yield from _fold(f"{name}: left to +network=...; {line.why}", "  " * len(sections))
            continue
        why = f"assumed: {line.why}" if line.is_assumed else line.why
        yield from _render(f"{'  ' * len(sections)}{name}: {render_value(line.value)}", why)


def _render(text: str, why: str) -> Iterator[str]:
    """The line with its comment behind it, or above where that is too long."""
    comment = _plain(why)
    if len(text) + len(comment) + 4 <= _WIDTH:
        yield f"{text}  # {comment}"
        return
    yield from _fold(comment, " " * (len(text) - len(text.lstrip())))
    yield text


def _fold(text: str, indent: str) -> list[str]:
    inner = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        _plain(text).strip(), _WIDTH, initial_indent=f"{indent}# {inner}", subsequent_indent=f"{indent}#   {inner}"
    ) or [f"{indent}#"]


def _plain(text: str) -> str:
    """In one line, and nothing that would command a terminal: the words are others'."""
    return "".join(char if char.isprintable() else " " for char in text)


def render_value(value: object) -> str:
    """One line of YAML.

    >>> render_value("1-00:00:00"), render_value(None), render_value("1:30"), render_value([])
    ("'1-00:00:00'", 'null', "'1:30'", '[]')
    """
    text = yaml.safe_dump([value], default_flow_style=True, width=10**6, allow_unicode=True)
    return str(text).strip()[1:-1]
