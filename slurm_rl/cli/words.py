"""Parse the arguments of a verb: flags anywhere, then the rest. Standard library only."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from slurm_rl.cli.verbs import VERBS
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError, find_near

PROGRAM = "python -m slurm_rl"


@dataclass(frozen=True)
class Words:
    """Parsed arguments of a verb."""

    flags: argparse.Namespace
    rest: list[str]
    """Overrides or a run, in their order."""
    command: list[str]
    """Words after `--`."""


def read_words(verb: str, words: list[str]) -> Words:
    """Separate the flags of this verb from its other words, in any order.

    Raises:
        ConfigError: an unknown flag, a flag without its value or without the flag it needs, or a command for a verb
            that takes none.
    """
    place = words.index("--") if "--" in words else len(words)
    own, command = words[:place], words[place + 1 :]
    if own != words and not VERBS[verb].takes_command:
        raise ConfigError(f"`{verb}` takes no command after --", seen=" ".join(["--", *command]), action="leave it out")
    flags, rest = _build_parser(verb).parse_known_args(own)
    for word in rest:
        if word.startswith("-"):
            _refuse_flag(verb, word)
    _require_needed_flags(verb, flags)
    return Words(flags, rest, command)


def _require_needed_flags(verb: str, flags: argparse.Namespace) -> None:
    by_name = {name: flag for flag in VERBS[verb].flags for name in flag.names}
    for flag in VERBS[verb].flags:
        if flag.needs and flag.is_given(flags) and not by_name[flag.needs].is_given(flags):
            name = flag.names[-1]
            raise ConfigError(
                f"{name} needs {flag.needs}", seen=f"no {flag.needs}", action=f"add {flag.needs}, or leave out {name}"
            )


def choose(what: str, word: str | None, options: Iterable[str]) -> str:
    """Return the word if it is one of the options.

    Raises:
        ConfigError: it is not, or there is no word.
    """
    known = list(options)
    if word in known:
        return word
    near = find_near(word or "", known)
    action = f"did you mean {near}?" if near else f"choose one of {', '.join(known)}"
    raise ConfigError(f"{what} must be one of {', '.join(known)}", seen=word or "none", action=action)


def render_help() -> str:
    """Return usage, verbs and the presets of every config group."""
    from slurm_rl.config.load import SITE_DIR_VARIABLE, conf_dir, site_dirs
    from slurm_rl.config.presets import list_presets

    groups = list_presets([conf_dir(), *site_dirs(None)])
    lines = [
        "usage: python -m slurm_rl [verb] [overrides | run]",
        "",
        "  python -m slurm_rl                           the demo, on CPU, in minutes",
        "  python -m slurm_rl +exp=demo optim.lr=1e-4   another value; all keys: config",
        "",
        "verbs (submit when none is given; <verb> --help: its flags and an example):",
        *(line for verb, row in VERBS.items() for line in _entry(verb, row.about)),
        "",
        "config groups (+group=option or group=option, in any order):",
        *(line for group, presets in groups.items() for line in _entry(group, " ".join(sorted(presets)))),
        "",
        f"  --config-dir DIR, or {SITE_DIR_VARIABLE}: a folder with presets of your own",
        "  --version     print the version",
        "  --cfg job     print the composed config; --hydra-help: Hydra's own flags",
    ]
    return "\n".join(lines)


def _entry(name: str, text: str) -> list[str]:
    """Return a name and its description, in 80 columns."""
    width = max(map(len, VERBS)) + 4
    return textwrap.wrap(
        text, 80, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width, break_on_hyphens=False
    )


def render_verb_help(verb: str) -> str:
    """Return the text of --help of this verb."""
    row = VERBS[verb]
    parser = _build_parser(verb)
    parts = [row.details]
    if row.list_details is not None:
        parts.append(load_function(row.list_details)())
    parser.epilog = "\n\n".join([*filter(None, parts), f"example:\n  {PROGRAM} {row.example}"])
    return parser.format_help()


class Parser(argparse.ArgumentParser):
    """Raises ConfigError for bad arguments."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, action=f"see {self.prog} --help")


def _build_parser(verb: str) -> Parser:
    row = VERBS[verb]
    parser = Parser(
        prog=f"{PROGRAM} {verb}",
        usage=f"%(prog)s [flags] {row.words}",
        description=row.about[0].upper() + row.about[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str | None, argparse._ActionsContainer] = {None: parser}
    for flag in row.flags:
        if flag.not_with not in groups:
            groups[flag.not_with] = parser.add_mutually_exclusive_group()
        groups[flag.not_with].add_argument(*flag.names, **flag.options)
    return parser


def _refuse_flag(verb: str, word: str) -> NoReturn:
    known = [*(name for flag in VERBS[verb].flags for name in flag.names), "--help"]
    name = word.partition("=")[0]
    owners = [other for other, row in VERBS.items() if any(name in flag.names for flag in row.flags)]
    action = f"see {PROGRAM} {verb} --help"
    if override := _as_override(word):
        raise ConfigError(f"`{verb}` has no flag of this name", seen=word, action=f"write {override}, without dashes")
    if near := find_near(name, known):
        action = f"did you mean {near}? Or {action}"
    elif owners:
        action = f"{name} is of {' and '.join(owners)}; {action}"
    raise ConfigError(f"a flag of `{verb}` must be one of {', '.join(known)}", seen=word, action=action)


def _as_override(word: str) -> str | None:
    """Return the override for a word written as a flag: --cluster=x or --optim.lr=1e-4."""
    from slurm_rl.config.overrides import GROUPS

    key, equals, value = word.lstrip("-").partition("=")
    if key in GROUPS:
        return f"+{key}={value or '<preset>'}"
    return f"{key}={value}" if equals and "." in key else None
