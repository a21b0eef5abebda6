"""`completion`: print the function for a shell, and answer it.

Each TAB starts Python, so this file and its late imports are light: keys come from keys.txt, which
`python -m tests.reference` writes, and not from the pydantic models.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from slurm_rl.cli.parser import Parser, load_verbs

_SCRIPT = """\
_slurm_rl() {
  local IFS=$'\\n'
  COMPREPLY=($("$1" completion --line="${COMP_LINE:0:COMP_POINT}" --length="${#2}" 2>/dev/null))
  case "${#COMPREPLY[@]} ${COMPREPLY[0]}" in
    "1 "*[=./]) compopt -o nospace 2>/dev/null ;;
  esac
}
if [ -n "${ZSH_VERSION-}" ]; then autoload -U +X bashcompinit && bashcompinit; fi
complete -o default -F _slurm_rl slurm-rl
"""


def run(args: argparse.Namespace) -> int:
    """Print the script, or with --line one candidate per line."""
    if args.line is None:
        print(_SCRIPT, end="")
        return 0
    typed = args.line.split()[1:] + ([""] if args.line[-1:].isspace() else [])
    if typed:
        # bash begins a new word after = and :, zsh does not.
        skipped = 0 if args.length is None else len(typed[-1]) - args.length
        print("\n".join(word[skipped:] for word in complete(typed)))
    return 0


def complete(typed: list[str]) -> list[str]:
    """Return the words that may stand at the end of a command line.

    Args:
        typed: words after `slurm-rl`; the last one is incomplete, and may be empty.
    """
    *before, word = typed
    verbs = load_verbs().by_name
    verb = before[0] if before and before[0] in verbs else "submit"
    parser = verbs[verb]
    flags = {name: flag for flag in parser.list_flags() for name in flag.option_strings}
    if before and before[-1] in flags and flags[before[-1]].nargs != 0:
        found: Iterable[str] = flags[before[-1]].choices or ()
    elif word.startswith("-"):
        found = [*flags, "--help"]
    else:
        found = [*([] if before else verbs), *_list_arguments(parser, word)]
    return sorted(name for name in found if name.startswith(word))


def _list_arguments(parser: Parser, word: str) -> Iterable[str]:
    """Return runs, overrides or fixed words, as the verb takes them."""
    takes = parser.arguments
    if "|" in (first := takes.partition(" ")[0]) and not first.startswith("["):
        yield from first.split("|")
    if "[run" in takes and "=" not in word and not word.startswith("+"):
        yield from _list_runs()
    if "section" in takes and "=" not in word:
        yield from (key.rpartition(".")[0] for key in _list_keys() if "." in key)
    if "overrides" in takes:
        yield from _list_overrides(word)


def _list_overrides(word: str) -> Iterable[str]:
    from slurm_rl.config.preset_folders import conf_dir, site_dirs
    from slurm_rl.config.presets import list_presets

    presets, keys = list_presets([conf_dir(), *site_dirs(None)]), _list_keys()
    key, equals, _ = word.partition("=")
    if equals:
        group = key.lstrip("+")
        return [f"{key}={value}" for value in (*presets.get(group, ()), *keys.get(key, ()))]
    # One section at a time: a list of all keys fills the screen.
    depth = word.count(".") + 1
    below = {".".join(name.split(".")[:depth]) + ("." if name.count(".") >= depth else "=") for name in keys}
    return (
        [f"+{group}=" for group in presets] if word.startswith("+") else [*(f"{group}=" for group in presets), *below]
    )


def _list_keys() -> dict[str, list[str]]:
    """Return every key with its choices."""
    lines = Path(__file__).with_name("keys.txt").read_text(encoding="utf-8").splitlines()
    return {words[0]: words[1:] for line in lines if (words := line.split())}


def _list_runs() -> Iterable[str]:
    """Return the names and job ids of the user's newest submissions, and folders of runs here."""
    from slurm_rl.launch.runs.find import DEFAULT_ROOT, RUN_FILES, read_recent

    for sent in read_recent():
        if Path(sent.path).is_dir():
            yield from (Path(sent.path).name, *sent.jobs)
    yield from sorted({str(found.parent) for file in RUN_FILES for found in DEFAULT_ROOT.glob(f"*/{file}")})
