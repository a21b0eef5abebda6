"""Config of another trainer's program that runs on our cluster."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from typing_extensions import TypeAliasType

from slurm_rl.config.section import PositiveInt, Section

Style: TypeAlias = Literal["flags", "overrides"]
LayoutName: TypeAlias = Literal[
    "steps",
    "verl",
    "openrlhf",
    "maxtext",
    "trl",
    "nemo_rl",
    "prime_rl",
    "skyrl",
    "slime",
    "open_instruct",
    "torchtitan",
]
Starter: TypeAlias = Literal["ray", "torchrun"]
Argument: TypeAlias = bool | int | float | str | list[int | float | str] | None
Arguments = TypeAliasType("Arguments", "dict[str, Argument | Arguments]")


class ExternalConfig(Section):
    """Command line of another trainer: `argv`, then `args` written in `style`.

    Both may use `${plan:nodes}`, `gpus_per_node`, `gpus`, `checkpoints` and `export`, which are values of the plan;
    `${plan:nodes,4}` is the number for a fourth of all GPUs.
    """

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    """Program and leading arguments."""
    start: Starter = "ray"
    """ray: start once, on the head node of the run's Ray cluster. torchrun: start a rank per GPU (one per node without
    GPUs), with RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR set and without Ray."""
    style: Style = "flags"
    """Format of `args`: `--name value` (flags), or `name=value` (overrides)."""
    args: dict[str, Argument | Arguments] = Field(default={})
    """Arguments by the program's own names, a dot as a level; true: a bare flag, null: drop it."""
    resume: dict[str, Argument | Arguments] = Field(default={})
    """Arguments added or replaced after the first attempt; with a `layout` only if there is a complete checkpoint, at
    `${checkpoint:name}` below the checkpoint folder, of step `${checkpoint:step}`."""
    layout: LayoutName | None = None
    """Checkpoint layout of the program below `${plan:checkpoints}`; `steps`: folders `step-<k>`; null: unknown, so all
    later attempts get `resume`."""
    before_limit: dict[str, Argument | Arguments] = Field(default={})
    """Arguments that make the program save before the time limit; added if the job has one and `args` does not name
    them. `${limit:timestamp}` is the time by which it must have saved, in seconds since 1970; `${limit:left}` is the
    time until then as DD:HH:MM:SS, `${limit:left,600}` is 600 s less."""
    limit_message: str | None = None
    """Text in the program's output when it has saved for the limit and ended with status 0 before its last step."""
    ranks_per_node: PositiveInt | None = None
    """Ranks per node with start=torchrun; null: one per GPU, or one per node without GPUs."""
    max_nodes: PositiveInt | None = None
    """Nodes that the program can use at most; null: unlimited."""
    needs: dict[str, str] = Field(default={})
    """Distributions (and `python`) that the image must have, with version conditions such as `>=0.9,<0.10`; an empty
    text accepts any version."""
    model: str | None = None
    """Model it trains, for status and report; `args` can refer to it as ${external.model}."""
