"""Generate docs/reference, every key and every verb, from docstrings and --help; and the keys of tab completion.

python -m tests.reference    writes all files
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from slurm_rl.cli.config import name_readers
from slurm_rl.cli.parser import load_verbs, render_help
from slurm_rl.config.keys import Key, list_keys, show_value
from slurm_rl.config.preset_folders import SITE_DIR_VARIABLE, conf_dir
from slurm_rl.config.presets import describe_preset, list_presets

ROOT = Path(__file__).parents[1]
_MADE = "<!-- made by `python -m tests.reference` -->\n"
_HEAD = ["| key | default | type | meaning |", "|---|---|---|---|"]


def render_pages() -> dict[str, str]:
    """Return file -> text."""
    choices = [" ".join([key.name, *key.choices]) for key in list_keys().values() if not key.is_section]
    files = {"docs/reference/keys.md": _keys(), "docs/reference/verbs.md": _verbs()}
    files["slurm_rl/plugins/completion/keys.txt"] = iter(choices)
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def _keys() -> Iterator[str]:
    yield f"# Every key\n\n{_MADE}"
    yield "`key=value` sets a key, `+group=preset` takes a preset; `python -m slurm_rl config` prints this page in a"
    yield "terminal, and with overrides the values that they set.\n"
    keys, presets = list(list_keys().values()), list_presets([conf_dir()])
    yield "## The run\n"
    yield from _HEAD
    yield from (_row(key) for key in keys if "." not in key.name and not key.is_section)
    for section in (key for key in keys if key.is_section and "." not in key.name):
        yield f"\n## {section.name}\n\n{_text(section.details)} Read with {name_readers(section.name)}.\n"
        yield from _HEAD
        below = [key for key in keys if key.name.startswith(f"{section.name}.")]
        # Sections inside it follow its own keys, as in a terminal.
        yield from (f"| **{key.name}** | | {key.type} | {_text(key.details)} |" if key.is_section else _row(key)
                    for key in below)  # fmt: skip
        if section.name in presets:
            yield from _presets(section.name, presets.pop(section.name))
    for group in list(presets):
        yield f"\n## +{group}"
        yield from _presets(group, presets[group])


def _row(key: Key) -> str:
    own, of_section = name_readers(key.name), name_readers(key.name.partition(".")[0])
    more = "" if own == of_section else f" Read with {own}."
    return f"| `{key.name}` | `{show_value(key.default)}` | {_text(key.type)} | {_text(key.meaning)}{more} |"


def _presets(group: str, files: dict[str, Path]) -> Iterator[str]:
    yield f"\n| preset | `+{group}=` |\n|---|---|"
    yield from (f"| `{name}` | {_text(describe_preset(file))} |" for name, file in files.items())


def _text(text: str) -> str:
    """Escape markup in a table cell, except inside backticks."""
    outside = re.compile(r"(`[^`]*`)")
    parts = [
        part if part.startswith("`") else re.sub("<(?=[a-zA-Z/])", "&lt;", part).replace("*", "\\*")
        for part in outside.split(text)
    ]
    return "".join(parts).replace("|", "\\|")


def _verbs() -> Iterator[str]:
    yield f"# Every verb\n\n{_MADE}"
    yield "What `--help` prints. Exit codes: 0 finished, 1 failed, 2 bad input (found before anything is queued), 76"
    yield "another controller has the run, 130 interrupted and saved.\n"
    for title, text in [
        ("python -m slurm_rl", render_help()),
        *((verb, parser.format_help()) for verb, parser in load_verbs().by_name.items()),
    ]:
        yield f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


def render_plainly() -> dict[str, str]:
    """Return pages independent of the machine: 80 columns, no presets of a site."""
    kept = {name: os.environ.get(name) for name in ("COLUMNS", SITE_DIR_VARIABLE)}
    os.environ["COLUMNS"] = "80"
    os.environ.pop(SITE_DIR_VARIABLE, None)
    try:
        return render_pages()
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


if __name__ == "__main__":
    for name, text in render_plainly().items():
        (ROOT / name).write_text(text, encoding="utf-8")
