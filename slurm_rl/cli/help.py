"""The text of --help: verbs, and the presets that are there to be named."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.cli.verbs import VERBS
from slurm_rl.config.load import SITE_DIR_VARIABLE, conf_dir, site_dirs


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
