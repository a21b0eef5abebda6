"""`config --completion`: print tables of verbs, presets and keys, then completion.sh."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slurm_rl.cli.parser import Parser, load_verbs
from slurm_rl.config.keys import list_keys
from slurm_rl.config.load import conf_dir, site_dirs
from slurm_rl.config.presets import list_presets
from slurm_rl.errors import ConfigError


def run_completion(args: argparse.Namespace) -> int:
    if args.rest:
        raise ConfigError("`config --completion` takes no words", seen=" ".join(args.rest), action="leave them out")
    script = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
    print("\n".join([*_tables(args.config_dir), script]), end="")
    return 0


def _tables(config_dir: str | None) -> Iterator[str]:
    """Yield the lines of shell variables and functions with all names."""
    verbs, keys = load_verbs().by_name, list(list_keys().values())
    presets = list_presets([conf_dir(), *site_dirs(config_dir)])
    flags = [flag for parser in verbs.values() for flag in parser.list_flags()]
    lists = {
        "verbs": verbs,
        "sections": [key.name for key in keys if key.is_section],
        "keys": [key.name for key in keys if not key.is_section],
        "groups": presets,
        "plus_groups": [f"+{group}" for group in presets],
        "tables": [f"+{key.name}." for key in keys if key.is_table],
        "valued": {name for flag in flags if flag.nargs != 0 for name in flag.option_strings},
    }
    for name, words in lists.items():
        yield f"_slurm_rl_{name}={_join(words)}"
    rows = {verb: _describe(parser) for verb, parser in verbs.items()}
    rows["none"] = f"{_describe(verbs['submit'])} first={_join(verbs)}"
    yield from _switch("_slurm_rl_row", "$1", rows)
    values = {group: f"values={_join(names)}" for group, names in presets.items()}
    values |= {key.name: f"values={_join(key.choices)}" for key in keys if key.choices}
    values |= {name: f"values={_join(flag.choices)}" for flag in flags if flag.choices for name in flag.option_strings}
    yield from _switch("_slurm_rl_values", '"${1##+}"', values)


def _switch(function: str, word: str, answers: Mapping[str, str]) -> list[str]:
    cases = [f"    {name}) {text} ;;" for name, text in answers.items()]
    return [f"{function}() {{", f"  case {word} in", *cases, "  esac", "}"]


def _join(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _describe(parser: Parser) -> str:
    """Return assignments of the verb's flags, the kind of its words, and the choices of its first word."""
    flags = [*(name for flag in parser.list_flags() for name in flag.option_strings), "--help"]
    text = parser.arguments
    kinds = {"section": "names", "overrides": "overrides", "run": "runs", "sweep": "runs"}
    kind = next((kind for word, kind in kinds.items() if word in text), "''")
    first = text.partition(" ")[0]
    return f"flags={_join(flags)} takes={kind} first={_join(first.split('|') if '|' in first else [])}"
