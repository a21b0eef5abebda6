"""The words of a command line as Hydra wants them: +group=x and group=x mean the same, in any order. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_rl.errors import ConfigError

GROUPS = ("external", "exp", "network", "cluster", "model", "data", "algorithm", "lora", "reward")
"""The groups of conf/config.yaml, in its order, in which Hydra lays them over each other."""
DEMO = ("exp=demo",)
"""What runs when no words are given."""


def normalise_words(words: Sequence[str]) -> list[str]:
    """Each of our groups without the plus of Hydra's appending; any argument of an external program with it.

    Raises:
        ConfigError: a group is chosen twice.

    >>> normalise_words(["optim.lr=1", "+cluster=h100", "+cluster.env.A=1", "model=hf"])
    ['optim.lr=1', 'cluster=h100', '+cluster.env.A=1', 'model=hf']
    >>> normalise_words(["external.args.actor.adam.lr=1e-6"])
    ['++external.args.actor.adam.lr=1e-6']
    """
    chosen: dict[str, str] = {}
    result = []
    for word in words:
        match = re.fullmatch(r"\+{0,2}(\w+)=(.*)", word, re.DOTALL)
        if match is not None and match.group(1) in GROUPS:
            group, option = match.groups()
            if group in chosen:
                raise ConfigError(
                    f"{group} must be chosen once",
                    seen=f"{group}={chosen[group]} and {group}={option}",
                    action=f"leave one out, or lay both over each other: {group}=[{chosen[group]},{option}]",
                )
            chosen[group] = option
            word = f"{group}={option}"
        elif word.startswith(("external.args.", "external.resume.")):
            # Presets do not say all arguments that a program has, nor do we know them.
            word = f"++{word}"
        result.append(word)
    return result
