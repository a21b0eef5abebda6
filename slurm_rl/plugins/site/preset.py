"""Render the preset, with the source of each value as a comment. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from slurm_rl.plugins.site.gpu_models import find_model
from slurm_rl.plugins.site.machine import Findings, Folder
from slurm_rl.plugins.site.questions import Answer, Answers
from slurm_rl.plugins.site.slurm_facts import NodeKind, Partition

_WIDTH = 118
_MAX_FEATURES = 12
_COMMENT_ONLY = object()
"""Value of a key that is a comment in the preset."""
_DAY_MIN = 24 * 60
_OBJECT_STORE_GB = 32
_CPUS, _MEM_GB = 8, 16
"""Request on a shared node without GPUs."""


@dataclass(frozen=True)
class Line:
    """A key of the preset, dotted."""

    key: str
    value: object
    why: str
    is_assumed: bool = False


@dataclass(frozen=True)
class Preset:
    """The text of a preset, and the keys with assumed values."""

    text: str
    assumed: tuple[str, ...]


def build_preset(findings: Findings, answers: Answers, header: Sequence[str]) -> Preset:
    """Return the content of `<folder>/cluster/<name>.yaml`; it begins with the header as a comment."""
    lines = list(_lines(findings, answers, findings.partition(answers["partition"].value)))
    comments = [*header]
    comments += [f"Slurm takes no job in {name}: {why}" for name, why in findings.refused.items()]
    comments += [f"No answer from `{query}`: {why}" for query, why in findings.failed.items()]
    parts = ["# @package _global_", *(part for text in comments for part in _wrap(text, ""))]
    network = answers["network"]
    if network.value != "auto":
        parts += ["defaults:", "  - _self_", *_with_comment(f"  - override /network: {network.value}", network.why)]
    parts += _render_tree(lines)
    return Preset("\n".join(parts) + "\n", tuple(line.key for line in lines if line.is_assumed))


def _lines(findings: Findings, answers: Answers, partition: Partition) -> Iterator[Line]:
    def answered(key: str) -> Line:
        answer = answers[key.rpartition(".")[2]]
        return Line(key, answer.value or None, answer.why, answer.is_assumed)

    on_gpus = answers["accelerator"].value != "cpu"
    yield Line("cluster.launcher", "slurm", f"{findings.version} answers on {findings.host}")
    yield answered("cluster.accelerator")
    yield from _gpu_lines(partition.kind, answers["accelerator"]) if on_gpus else _cpu_lines(partition.kind)
    yield Line("cluster.num_nodes", 1, f"to begin with; {_count(partition)}", is_assumed=True)
    yield answered("cluster.run_root")
    yield Line("cluster.tmp_root", "/tmp", _explain_tmp(findings), is_assumed=True)
    has_image = bool(answers["image"].value)
    yield Line("cluster.python", None, "python3 of the image" if has_image else _explain_python(findings.python))
    # Even null here would override +network=... on a command line.
    yield Line("cluster.network_interface", _COMMENT_ONLY, answers["network"].why)
    yield Line("cluster.setup", [], 'shell lines on each node first, such as "module load cuda"; none is known')
    yield Line("cluster.env", {}, "variables of all processes; none is needed so far")
    for key in ("partition", "account", "qos"):
        yield answered(f"cluster.slurm.{key}")
    yield Line("cluster.slurm.constraint", None, _explain_features(partition))
    why = "whole nodes: all GPUs of each are taken" if on_gpus else "others may use the rest of a node"
    yield Line("cluster.slurm.exclusive", on_gpus, why)
    yield Line("container.runtime", answers["runtime"].value, answers["runtime"].why)
    yield answered("container.image")
    yield _time_line(partition)
    yield Line("job.max_failures", 3, "attempts that may fail before a run gives up, as in the shipped presets")
    if on_gpus:
        memory = partition.kind.mem_mb / 1024
        store = max(2, min(_OBJECT_STORE_GB, int(memory / 8)))
        yield Line("ray.object_store_gb", store, f"of the {memory:.0f} GB of a node, in /dev/shm")


def _gpu_lines(kind: NodeKind, accelerator: Answer) -> Iterator[Line]:
    gpu_type = kind.gpu_type or ""
    yield Line("cluster.gpu_type", gpu_type or None, f"GRES of its nodes: {kind.gres}")
    yield Line("cluster.gpus_per_node", kind.num_gpus, f"all of a node: {kind.gres}")
    model = find_model(gpu_type)
    if model is None or model.mem_gb is None or model.accelerator != accelerator.value:
        yield Line("cluster.gpu_mem_gb", None, "unknown, so memory is not estimated; doctor shows it")
    elif model.other_mem_gb is not None:
        why = f"{gpu_type} is sold with {model.mem_gb} and with {model.other_mem_gb} GB; doctor shows which"
        yield Line("cluster.gpu_mem_gb", model.mem_gb, why, is_assumed=True)
    else:
        yield Line("cluster.gpu_mem_gb", model.mem_gb, f"by the name of the type, {gpu_type}")
    yield Line("cluster.cpus_per_node", None, f"all {kind.cpus} of a node, since it is exclusive")
    yield Line("cluster.mem_gb_per_node", "all", f"all {kind.mem_mb // 1024} GB of a node (--mem=0)")


def _cpu_lines(kind: NodeKind) -> Iterator[Line]:
    has = f"a node has {kind.cpus} CPUs and {kind.mem_mb // 1024} GB (sinfo)"
    yield Line("cluster.gpus_per_node", 0, "none are taken")
    yield Line("cluster.cpus_per_node", min(_CPUS, kind.cpus), has, is_assumed=True)
    yield Line("cluster.mem_gb_per_node", max(1, min(_MEM_GB, kind.mem_mb // 1024)), has, is_assumed=True)


def _count(partition: Partition) -> str:
    kind = partition.kind
    fit = [one for one in partition.kinds if (one.gpu_type, one.num_gpus) == (kind.gpu_type, kind.num_gpus)]
    fit = [one for one in fit if one.cpus >= kind.cpus and one.mem_mb >= kind.mem_mb]
    total, usable = sum(one.num_nodes for one in fit), sum(one.num_usable for one in fit)
    nodes = "node" if total == 1 else "nodes"
    return f"{partition.name} has {total} such {nodes}, of which {usable} take jobs now"


def _time_line(partition: Partition) -> Line:
    limit, default = partition.max_time_min, partition.rules.get("DefaultTime", "NONE")
    minutes = _DAY_MIN if limit is None else min(_DAY_MIN, limit)
    why = f"{partition.name} has {'no limit' if limit is None else f'a limit of {render_minutes(limit)}'}"
    why += "" if default in ("NONE", "") else f", {default} by default"
    return Line("job.time_limit", render_minutes(minutes), why, is_assumed=limit is None or limit > _DAY_MIN)


def render_minutes(minutes: int) -> str:
    """Return a time limit in Slurm's notation.

    >>> render_minutes(2880), render_minutes(90)
    ('2-00:00:00', '0-01:30:00')
    """
    return f"{minutes // _DAY_MIN}-{minutes % _DAY_MIN // 60:02}:{minutes % 60:02}:00"


def _explain_tmp(findings: Findings) -> str:
    set_to = findings.settings.get("TmpFS", "")
    other = f"; TmpFS of slurm.conf is {set_to}" if set_to not in ("", "/tmp", "(null)") else ""
    return f"local to each node; the nodes were not inspected{other}"


def _explain_python(python: Folder) -> str:
    seen = f"the Python of the command: {python.path} ({python.kind})"
    if python.local is not None:
        return f"{seen}, which is {python.local}: the nodes may not have it"
    return seen if python.is_shared else f"{seen}; the nodes must have it, too"


def _explain_features(partition: Partition) -> str:
    names = sorted({name for kind in partition.kinds for name in kind.features})
    more = " ..." if len(names) > _MAX_FEATURES else ""
    return f"features of its nodes: {', '.join(names[:_MAX_FEATURES])}{more}" if names else "its nodes have no features"


def _render_tree(lines: Sequence[Line]) -> Iterator[str]:
    """Yield YAML; keys of a section must be adjacent."""
    opened: list[str] = []
    for line in lines:
        *sections, name = line.key.split(".")
        for level, section in enumerate(sections):
            if opened[: level + 1] != sections[: level + 1]:
                yield f"{'  ' * level}{section}:"
        opened, indent = sections, "  " * len(sections)
        if line.value is _COMMENT_ONLY:
            yield from _wrap(f"{name}: set by +network=...; {line.why}", indent)
        else:
            why = f"assumed: {line.why}" if line.is_assumed else line.why
            yield from _with_comment(f"{indent}{name}: {render_value(line.value)}", why)


def _with_comment(text: str, why: str) -> Iterator[str]:
    """Yield the line with its comment behind it, or above it if that is too long."""
    comment = _printable(why)
    if len(text) + len(comment) + 4 <= _WIDTH:
        yield f"{text}  # {comment}"
        return
    yield from _wrap(comment, " " * (len(text) - len(text.lstrip())))
    yield text


def _wrap(text: str, indent: str) -> list[str]:
    inner = " " * (len(text) - len(text.lstrip()))
    first, rest = f"{indent}# {inner}", f"{indent}#   {inner}"
    wrapped = textwrap.wrap(_printable(text).strip(), _WIDTH, initial_indent=first, subsequent_indent=rest)
    return wrapped or [f"{indent}#"]


def _printable(text: str) -> str:
    """Replace line breaks and terminal control characters: the text comes from the site."""
    return "".join(char if char.isprintable() else " " for char in text)


def render_value(value: object) -> str:
    """Return a value as one line of YAML.

    >>> render_value("1-00:00:00"), render_value(None), render_value("1:30"), render_value([])
    ("'1-00:00:00'", 'null', "'1:30'", '[]')
    """
    is_printable = str(value).isprintable()
    text = yaml.safe_dump([value], default_flow_style=True, width=10**6, allow_unicode=is_printable)
    return str(text).strip()[1:-1]
