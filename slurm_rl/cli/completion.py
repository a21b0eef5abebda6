"""`config --completion`: print tables of verbs, presets and keys, then completion.sh."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slurm_rl.cli.flags import Verb
from slurm_rl.cli.verbs import VERBS
from slurm_rl.cli.words import Words
from slurm_rl.config.keys import list_keys
from slurm_rl.config.load import conf_dir, site_dirs
from slurm_rl.config.presets import list_presets
from slurm_rl.errors import ConfigError


def run_completion(told: Words) -> int:
    if told.rest:
        raise ConfigError("`config --completion` takes no words", seen=" ".join(told.rest), action="leave them out")
    script = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
    print("\n".join([*_tables(told.flags.config_dir), script]), end="")
    return 0


def _tables(config_dir: str | None) -> Iterator[str]:
    keys = list(list_keys().values())
    presets = list_presets([conf_dir(), *site_dirs(config_dir)])
    lists = {
        "verbs": VERBS,
        "sections": [key.name for key in keys if key.is_section],
        "keys": [key.name for key in keys if not key.is_section],
        "groups": presets,
        "plus_groups": [f"+{group}" for group in presets],
        "tables": [f"+{key.name}." for key in keys if key.is_table],
        "valued": {name for row in VERBS.values() for flag in row.flags if flag.takes_value for name in flag.names},
    }
    for name, words in lists.items():
        yield f"_slurm_rl_{name}={_join(words)}"
    rows = {verb: f"flags={_join(_flags(row))} takes={_takes(row)} first={_first(row)}" for verb, row in VERBS.items()}
    submit = VERBS["submit"]
    rows["none"] = f"flags={_join(_flags(submit))} takes={_takes(submit)} first={_join(VERBS)}"
    yield from _choose("_slurm_rl_row", "$1", rows)
    values = {group: f"values={_join(names)}" for group, names in presets.items()}
    values |= {key.name: f"values={_join(key.choices)}" for key in keys if key.choices}
    for flag in (flag for row in VERBS.values() for flag in row.flags if "choices" in flag.options):
        values |= {name: f"values={_join(flag.options['choices'])}" for name in flag.names}
    yield from _choose("_slurm_rl_values", '"${1##+}"', values)


def _choose(function: str, word: str, answers: Mapping[str, str]) -> list[str]:
    return [f"{function}() {{", f"  case {word} in", *(f"    {name}) {text} ;;" for name, text in answers.items()),
            "  esac", "}"]  # fmt: skip


def _join(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _flags(row: Verb) -> list[str]:
    return [*(name for flag in row.flags for name in flag.names), "--help"]


def _takes(row: Verb) -> str:
    """What its words are, as usage says."""
    if "section" in row.words:
        return "names"
    return "overrides" if "overrides" in row.words else "runs" if "run" in row.words or "sweep" in row.words else "''"


def _first(row: Verb) -> str:
    """The words of which one comes first: `dstack|xpk`."""
    first = row.words.partition(" ")[0]
    return _join(first.split("|")) if "|" in first else "''"
