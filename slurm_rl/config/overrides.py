"""Convert command-line words to Hydra overrides; +group=x and group=x are the same, in any order.

Presets may read the environment, `${oc.env:SCRATCH}`, but not secrets: a composed config is written to config.yaml,
plan.json, the report and W&B.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from slurm_rl.errors import ConfigError

GROUPS = ("external", "exp", "network", "cluster", "model", "data", "algorithm", "lora", "reward")
"""Groups of conf/config.yaml, in merge order."""
_OF_PROGRAMS = re.compile(
    r"external\.((args|resume|before_limit|needs)\.|(layout|start|ranks_per_node|max_nodes|limit_message)=)"
)
# A quoted string, an interpolation, or a number of Hydra's grammar that is a whole value, with the text before it.
_NUMBERS = re.compile(
    r"""'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | \$\{[^}]*\}
    | (?P<before>(?:^|[\[,]|[{,][^:,{}\[\]'"]+:)\s*)
      (?P<number>[-+]?(?:[\d_]+\.?[\d_]*(?:e[-+]?[\d_]+)?|\.[\d_]+(?:e[-+]?[\d_]+)?|inf|nan))
      (?=\s*[\],}]|$)""",
    re.IGNORECASE | re.VERBOSE,
)

DEMO = ("exp=demo",)
"""Overrides if none are given."""


def normalise_words(words: Sequence[str]) -> list[str]:
    """Return overrides with `+` removed from our groups and `++` added to arguments of external programs.

    Raises:
        ConfigError: a group is set twice.

    >>> normalise_words(["optim.lr=1", "+cluster=h100", "+cluster.env.A=1", "model=hf"])
    ['optim.lr=1', 'cluster=h100', '+cluster.env.A=1', 'model=hf']
    >>> normalise_words(["external.args.actor.adam.lr=1e-6"])
    ['++external.args.actor.adam.lr=1e-6']
    >>> normalise_words(["+cluster.env.VERSION=1.10", "optim.lr=1e-4"])
    ["+cluster.env.VERSION='1.10'", 'optim.lr=1e-4']
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
                    action=f"leave one out, or merge both: {group}=[{chosen[group]},{option}]",
                )
            chosen[group] = option
            word = f"{group}={option}"
        elif _OF_PROGRAMS.match(word):
            # Presets do not list all arguments of a program.
            word = f"++{word}"
        result.append(_quote_numbers(word))
    return result


def _quote_numbers(word: str) -> str:
    """Quote numbers in an override of a text, since Hydra would change their spelling (0123 -> 123)."""
    key, _, value = word.partition("=")
    numbers = {match["number"] for match in _NUMBERS.finditer(value)} - {None}
    if all(re.fullmatch(r"0|-?[1-9]\d*", number) for number in numbers):
        return word
    from slurm_rl.config.keys import takes_text

    name = key.lstrip("+")

    def quote(match: re.Match[str]) -> str:
        if not match["number"]:
            return match[0]
        inner = match["before"].strip("[{,: ")
        is_text = takes_text(name) or (inner != "" and takes_text(f"{name}.{inner}"))
        return f"{match['before']}'{match['number']}'" if is_text else match[0]

    return f"{key}={_NUMBERS.sub(quote, value)}"


def render_words(values: Mapping[str, Any]) -> list[str]:
    """Return Hydra overrides from dotted keys and Python values.

    Raises:
        ConfigError: a value of an unsupported type.

    >>> render_words({"name": "it's mine", "cluster.env": {"A": "1"}, "data.files": ["a", None, True, 1e-05]})
    ["name='it\\\\'s mine'", "++cluster.env.A='1'", "data.files=['a',null,true,1e-05]"]
    """
    words = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            # `++` adds entries of a table; validation finds unknown keys of a section.
            words += render_words({f"++{key.lstrip('+')}.{name}": item for name, item in value.items()})
        else:
            words.append(f"{key}={_render(key, value)}")
    return words


def _render(key: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):  # numpy.float64 is a float with another repr
        return float.__repr__(value)
    if isinstance(value, (str, os.PathLike)):
        from hydra.core.override_parser.types import Quote, QuotedString

        return str(QuotedString(os.fspath(value), Quote.single).with_quotes())
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_render(key, item)}" for name, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "[" + ",".join(_render(key, item) for item in value) + "]"
    raise ConfigError(
        f"{key} must be text, a path, a number, true or false, None, or a list or table of these",
        seen=repr(value),
        action=f"convert it, as in float(...); it is of type {type(value).__name__}",
    )


_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(^|_)(KEY|AUTH|COOKIE|DSN)S?(_|$)|_(PAT|PWD|PW)$", re.IGNORECASE
)


def names_a_secret(variable: str) -> bool:
    """Return whether the name of a variable indicates a secret.

    >>> [names_a_secret(name) for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "PWD", "KEYBOARD")]
    [True, True, False, False]
    """
    return bool(_SECRET.search(variable))


@contextmanager
def no_secrets_in_configs() -> Iterator[None]:
    """Make the resolver `oc.env` refuse secrets within the context."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def read_variable(name: str, *default: Any) -> Any:
        if names_a_secret(name):
            raise ConfigError(
                "a config must not contain secrets: it is written to the run directory and printed",
                seen=f"${{oc.env:{name}}}",
                action=(
                    "keep it in the environment: HF_TOKEN, WANDB_API_KEY and bucket credentials are passed on by name"
                ),
            )
        return oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", read_variable, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
