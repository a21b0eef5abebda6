"""What the program says for itself: --help, and exceptions that are none of ours."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from slurm_rl.cli.verbs import VERBS
from slurm_rl.config.load import SITE_DIR_VARIABLE, conf_dir, site_dirs
from slurm_rl.disk import explain_refusal


def render_help() -> str:
    """Usage, verbs and the options of every config group."""
    lines = [
        "usage: python -m slurm_rl [verb] [overrides | run]",
        "",
        "  python -m slurm_rl                           the demo: GRPO on this machine's CPU, minutes",
        "  python -m slurm_rl +exp=demo optim.lr=1e-4   with another value; every key: --cfg job",
        "",
        "verbs (submit when none is given; python -m slurm_rl <verb> --help: its flags and an example):",
        *(f"  {verb:<{max(map(len, VERBS)) + 2}}{row.about}" for verb, row in VERBS.items()),
        "",
        "config groups (+group=option or group=option, in any order):",
        *(f"  {group:<12}{' '.join(options)}" for group, options in find_groups().items()),
        "",
        f"  --config-dir DIR, or {SITE_DIR_VARIABLE}: a folder with presets of your own",
        "  --cfg job     print the composed config; --hydra-help: Hydra's own flags",
    ]
    return "\n".join(lines)


def find_groups() -> dict[str, list[str]]:
    """Options of each config group, ours and the site's."""
    groups: dict[str, set[str]] = {}
    for root in [conf_dir(), *site_dirs(None)]:
        for path in Path(root).glob("*/*.yaml"):
            groups.setdefault(path.parent.name, set()).add(path.stem)
    return {group: sorted(options) for group, options in sorted(groups.items())}


_SHOWN = 80


def explain(error: Exception) -> str:
    """What to tell the user; of an error that is not the operating system's own, where its traceback is kept."""
    if refusal := explain_refusal(error, Path()):
        return refusal
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"this machine refuses: {error.strerror}; got {_shorten(str(error.filename))}"
    return keep_traceback(error)


def keep_traceback(error: Exception) -> str:
    """Write the traceback to a new file of mode 0600; its name with the error, or all of it where no file can be."""
    text = "".join(traceback.format_exception(error))
    told = f"an error that slurm_rl did not foresee: {type(error).__name__}: {_shorten(str(error))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="slurm_rl-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError:
        return f"{told}\n{text}"
    return f"{told}. Next: report it with {file.name}, which has the traceback"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
