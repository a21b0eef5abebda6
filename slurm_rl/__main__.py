"""`python -m slurm_rl [verb] ...`: a verb (submit when none is given), then Hydra overrides or a run.

Light on purpose: the verb's module is imported after it is known, torch and ray never.
"""

from __future__ import annotations

import importlib
import sys

from slurm_rl import __version__
from slurm_rl.cli.told import run_told
from slurm_rl.cli.verbs import OLD_COMMANDS, VERBS
from slurm_rl.cli.words import render_help, render_verb_help
from slurm_rl.errors import ConfigError

_HELP_FLAGS = {"-h", "--help"}


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_told(lambda: run_verb(words))


def run_verb(words: list[str]) -> int:
    """Choose the verb, then hand it its words.

    Raises:
        SlurmRLError: of all that is wrong with the words.
    """
    _check_text(words)
    if words and words[0] in OLD_COMMANDS:
        new = OLD_COMMANDS[words[0]]
        raise ConfigError("this verb has a new name", seen=words[0], action=f"python -m {new}")
    is_named = bool(words) and words[0] in VERBS
    verb, rest = (words[0], words[1:]) if is_named else ("submit", words)
    own = rest[: rest.index("--")] if "--" in rest else rest
    if own[:1] in (["--version"], ["-V"]):
        print(f"slurm_rl {__version__}")
        return 0
    if _HELP_FLAGS & set(own):
        print(render_verb_help(verb) if is_named else render_help())
        return 0
    module = importlib.import_module(f"slurm_rl.cli.{verb.replace('-', '_')}")
    return int(module.run(rest))


def _check_text(words: list[str]) -> None:
    """Refuse what no file name and no config can hold, before anything is printed that holds it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError("a word must be UTF-8", seen=ascii(word), action="type it again") from None
        if "\0" in word:
            raise ConfigError("a word must hold no NUL character", seen=ascii(word), action="leave it out")


if __name__ == "__main__":
    sys.exit(main())
