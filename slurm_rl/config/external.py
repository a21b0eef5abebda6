"""A trainer that is not ours, run on the cluster that we bring up: its command line, in its own words."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from typing_extensions import TypeAliasType

from slurm_rl.config.section import Section

Style: TypeAlias = Literal["flags", "overrides"]
LayoutName: TypeAlias = Literal["steps", "verl", "openrlhf", "maxtext", "trl", "nemo_rl", "prime_rl"]
Starter: TypeAlias = Literal["ray", "torchrun"]
Argument: TypeAlias = bool | int | float | str | list[int | float | str] | None
Arguments = TypeAliasType("Arguments", "dict[str, Argument | Arguments]")


class ExternalConfig(Section):
    """The command line is `argv`, then `args` as `style` writes them.

    In both, `${plan:nodes}`, `gpus_per_node`, `gpus`, `checkpoints` and `export` are what the plan comes to;
    `${plan:nodes,4}` and so on are of a fourth of all GPUs.
    """

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program and its first words, as given."""
    start: Starter = "ray"
    """ray: once, on the head node of the run's Ray cluster. torchrun: a rank on every GPU of every node, or one a node
    without GPUs; the program finds RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR, and there is no Ray."""
    style: Style = "flags"
    """How `args` are written: `--name value`, or `name=value`."""
    args: dict[str, Argument | Arguments] = Field(default={})
    """The program's own arguments by their own names, a dot as a level: true for a bare flag, null to drop one."""
    resume: dict[str, Argument | Arguments] = Field(default={})
    """Those that an attempt after the first has in addition, or instead; with a `layout` only where there is a whole
    checkpoint: `${checkpoint:name}` is its path below the checkpoint folder, `${checkpoint:step}` its step."""
    layout: LayoutName | None = None
    """Whose way of keeping checkpoints the program has, below `${plan:checkpoints}`; `steps`: folders `step-<k>`. Null:
    not known, so that every later attempt gets `resume`."""
    ranks_per_node: Annotated[int, Field(gt=0)] | None = None
    """Of torchrun; null: one on every GPU, one a node without GPUs."""
    max_nodes: Annotated[int, Field(gt=0)] | None = None
    """Nodes that the program can make use of; null: any number."""
    needs: dict[str, str] = Field(default={})
    """Packages that its image must have, by the names of their distributions, and `python`: conditions on the version,
    such as `>=0.9,<0.10`, or an empty text for any."""
    model: str | None = None
    """What it trains, for status and report; in a preset its arguments can repeat it as ${external.model}."""
