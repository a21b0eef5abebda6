"""Argument parser with one subparser per verb. Standard library only.

`run` of a verb is `module:function`, imported when the verb is used. It takes the parsed arguments, which also have
`verb`, `rest` (overrides or a run, in their order) and `command` (the words after `--`), and returns the exit code.
"""

import argparse
import math
import textwrap
from collections.abc import Iterable
from functools import cache, partial
from typing import Any, NoReturn

from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError, find_near

PROGRAM = "python -m slurm_rl"
_VERBS = ("slurm_rl.cli.verbs:add_verbs", "slurm_rl.plugins.verbs:add_verbs")
"""Functions that add the verbs of the core and of the plugins."""


class Parser(argparse.ArgumentParser):
    """Raises ConfigError for bad arguments."""

    arguments = example = ""
    """Arguments of the verb as in the usage line, and of an example."""
    takes_command = False
    list_details: str | None = None
    """`module:function` that returns more text for --help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **options})
        self.needs: dict[str, str] = {}
        """Flag -> the flag without which it has no effect."""

    def flag(self, *names: str, needs: str | None = None, **options: Any) -> None:
        """Add a flag; the command line is refused if it has the flag without the one it needs."""
        self.add_argument(*names, **options)
        if needs is not None:
            self.needs[names[-1]] = needs

    def switch(self, *names: str, needs: str | None = None, **options: Any) -> None:
        """Add a flag that takes no value."""
        self.flag(*names, needs=needs, action="store_true", **options)

    def list_flags(self) -> list[argparse.Action]:
        """Return the flags without --help and those that only our own scripts use."""
        hidden = argparse.SUPPRESS
        return [flag for flag in self._actions if flag.option_strings and flag.dest != "help" and flag.help != hidden]

    def format_help(self) -> str:
        if not self.example:
            return super().format_help()
        details = self.epilog
        more = load_function(self.list_details)() if self.list_details is not None else None
        self.epilog = "\n\n".join(filter(None, [details, more, f"example:\n  {PROGRAM} {self.example}"]))
        text = super().format_help()
        self.epilog = details
        return text

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, action=f"see {self.prog} --help")


class Verbs:
    """The verbs of the parser."""

    def __init__(self) -> None:
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=16)
        usage = "%(prog)s [verb] [overrides | run]"
        self.parser = Parser(prog=PROGRAM, usage=usage, add_help=False, formatter_class=formatter)
        title = "verbs (submit if none is given; <verb> --help: its flags and an example)"
        self._subparsers = self.parser.add_subparsers(title=title, dest="verb", metavar="")
        self.by_name: dict[str, Parser] = {}

    def add(self, name: str, about: str, arguments: str, example: str, run: str = "", details: str = "") -> Parser:
        """Add a verb.

        Args:
            name: first word of the command line.
            about: one line for --help.
            arguments: as in the usage line.
            example: a whole command line, after `python -m slurm_rl`.
            run: `module:function`; by default `run` of the module of this name in cli/.
            details: more text for the verb's own --help.
        """
        parser: Parser = self._subparsers.add_parser(
            name,
            help=about,
            prog=f"{PROGRAM} {name}",
            usage=f"%(prog)s [flags] {arguments}",
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=details,
        )
        parser.arguments, parser.example = arguments, example
        parser.set_defaults(run=run or f"slurm_rl.cli.{name.replace('-', '_')}:run")
        self.by_name[name] = parser
        return parser


@cache
def load_verbs() -> Verbs:
    """Return the core's verbs and those of the plugins."""
    verbs = Verbs()
    for spec in _VERBS:
        load_function(spec)(verbs)
    return verbs


def parse(verb: str, words: list[str]) -> argparse.Namespace:
    """Parse the words after a verb; flags and other words may be in any order.

    Raises:
        ConfigError: an unknown flag, a flag without its value or without the flag it needs, or a command for a verb
            that takes none.
    """
    parser = load_verbs().by_name[verb]
    place = words.index("--") if "--" in words else len(words)
    if place < len(words) and not parser.takes_command:
        raise ConfigError(f"`{verb}` takes no command after --", seen=" ".join(words[place:]), action="leave it out")
    args, rest = load_verbs().parser.parse_known_args([verb, *words[:place]])
    args.rest, args.command = rest, words[place + 1 :]
    for word in rest:
        if word.startswith("-"):
            _refuse_flag(verb, word)
    given = [flag for flag in parser.list_flags() if getattr(args, flag.dest) != flag.default]
    names = {name for flag in given for name in flag.option_strings}
    for flag, needed in parser.needs.items():
        if flag in names and needed not in names:
            action = f"add {needed}, or leave out {flag}"
            raise ConfigError(f"{flag} needs {needed}", seen=f"no {needed}", action=action)
    return args


def _refuse_flag(verb: str, word: str) -> NoReturn:
    names = {
        other: [name for flag in parser.list_flags() for name in flag.option_strings]
        for other, parser in load_verbs().by_name.items()
    }
    known, name = [*names[verb], "--help"], word.partition("=")[0]
    owners = [other for other, own in names.items() if name in own]
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
    from slurm_rl.config.preset_folders import SITE_DIR_VARIABLE, conf_dir, site_dirs
    from slurm_rl.config.presets import list_presets

    def wrap(name: str, text: str) -> str:
        start, later = f"  {name}".ljust(16), " " * 16
        return textwrap.fill(text, 80, initial_indent=start, subsequent_indent=later, break_on_hyphens=False)

    presets = list_presets([conf_dir(), *site_dirs(None)])
    parser = load_verbs().parser
    parser.description = f"  {PROGRAM}                           the demo, on CPU, in minutes\n"
    parser.description += f"  {PROGRAM} +exp=demo optim.lr=1e-4   another value; all keys: config"
    lines = [
        "config groups (+group=option or group=option, in any order):",
        *(wrap(group, " ".join(sorted(names))) for group, names in presets.items()),
        "",
        f"  --config-dir DIR, or {SITE_DIR_VARIABLE}: a folder with presets of your own,",
        "                before `conf` of the current folder",
        "  --version     print the version",
        "  --cfg job     print the composed config",
    ]
    parser.epilog = "\n".join(lines)
    return parser.format_help().replace("\n  \n", "\n").rstrip()


def parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"must be a port, from 1 to 65535; got {text}")
    return int(text)


def parse_finite(text: str) -> float:
    return _parse_above(text, -math.inf, "a finite number")


def parse_positive(text: str) -> float:
    return _parse_above(text, 0, "a number above 0")


def _parse_above(text: str, bound: float, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not bound < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be {rule}; got {text}")
    return value
