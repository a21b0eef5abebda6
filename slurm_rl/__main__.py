"""`python -m slurm_rl [verb] ...`: a verb (submit if none is given), then Hydra overrides or a run.

The module of a verb is imported after the verb is known; torch and ray are never imported here.
"""

import sys

from slurm_rl import __version__
from slurm_rl.cli.output import catch_errors
from slurm_rl.cli.parser import load_verbs, parse, render_help
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError

_HELP_FLAGS = {"-h", "--help"}


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Return the exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    return catch_errors(lambda: run_verb(words))


def run_verb(words: list[str]) -> int:
    """Parse the words and run their verb.

    Raises:
        SlurmRLError: the words are wrong, or the verb failed.
    """
    _check_text(words)
    verbs = load_verbs().by_name
    verb, rest = (words[0], words[1:]) if words and words[0] in verbs else (None, words)
    own = rest[: rest.index("--")] if "--" in rest else rest
    if own[:1] in (["--version"], ["-V"]):
        print(f"slurm_rl {__version__}")
        return 0
    if _HELP_FLAGS & set(own):
        print(verbs[verb].format_help() if verb is not None else render_help())
        return 0
    args = parse(verb or "submit", rest)
    return int(load_function(args.run)(args))


def _check_text(words: list[str]) -> None:
    """Refuse words that no file name and no config can contain, before anything prints them."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError("an argument must be UTF-8", seen=ascii(word), action="type it again") from None
        if "\0" in word:
            raise ConfigError("an argument must not contain NUL characters", seen=ascii(word), action="leave it out")


if __name__ == "__main__":
    sys.exit(main())
