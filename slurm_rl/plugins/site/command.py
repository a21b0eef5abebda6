"""`site`: write the preset of this cluster, with the source of each value, and ask Slurm whether it takes a job."""

import argparse
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.common import compose_run
from slurm_rl.cli.parser import PROGRAM
from slurm_rl.config.paths import expand_user
from slurm_rl.config.preset_folders import SITE_DIR_VARIABLE, conf_dir, own_dir, project_dir
from slurm_rl.config.presets import check_preset_name
from slurm_rl.errors import ConfigError, SubmitError
from slurm_rl.launch.controller.attempts import EXIT_FAILED
from slurm_rl.launch.jobs import open_launcher
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.plugins.site.answers import KEYS, Answers, choose_answers
from slurm_rl.plugins.site.machine import Findings, inspect_site
from slurm_rl.plugins.site.preset import Preset, build_preset
from slurm_rl.run_dir.run_dir import expect_writable, write_text


def run(args: argparse.Namespace) -> int:
    if args.rest:
        raise ConfigError("`site` takes only flags", seen=" ".join(args.rest), action=f"see {PROGRAM} site --help")
    named = args.config_dir or os.environ.get(SITE_DIR_VARIABLE)
    folder = expand_user(named).absolute() if named else project_dir() or own_dir()
    print("site    inspects Slurm and this machine", file=sys.stderr, flush=True)
    findings = inspect_site()
    name = args.name if args.name is not None else name_of(findings.cluster)
    path = check_name(name, folder, force=args.force)
    given = {key: value for key in KEYS if (value := getattr(args, key)) is not None}
    preset, refusal = judge(name, findings, choose_answers(findings, given))
    with expect_writable(path.parent, "or choose another --config-dir", what="the folder for presets"):
        write_text(path, preset.text)
    # Other verbs search the same folders.
    words = [f"+cluster={name}", *(["--config-dir", str(folder)] if args.config_dir else [])]
    _report(path, preset, refusal, words)
    return EXIT_FAILED if refusal else 0


def judge(name: str, findings: Findings, answers: Answers) -> tuple[Preset, str]:
    """Compose the preset, plan the demo with it, and ask Slurm whether it takes that job. Nothing is queued.

    Returns:
        The preset, and Slurm's refusal; "" if Slurm takes a job of it.
    """
    date = time.strftime("%Y-%m-%d")
    origin = f"{name}: written by `{PROGRAM} site` on {findings.host}, {date}. Comments name the source of each value."
    with tempfile.TemporaryDirectory(prefix="slurm_rl-site-") as folder:
        write_text(Path(folder, "cluster", f"{name}.yaml"), build_preset(findings, answers, [origin]).text)
        _, plan, _ = compose_run([f"cluster={name}", "exp=demo"], folder, is_run=False)
    refusal = ""
    try:
        open_launcher(plan.launcher).check(plan)
        word = f"`sbatch --test-only` took a job of it on {date}."
    except (SubmitError, SlurmUnavailableError) as error:
        refusal = " ".join(str(error).split())
        word = f"REFUSED by `sbatch --test-only` on {date}: {refusal}"
        if isinstance(error, SlurmUnavailableError):
            word = f"NOT CHECKED by `sbatch --test-only`: {refusal}"
            refusal = f"not judged, since Slurm gave no answer: {refusal}"
    return build_preset(findings, answers, [origin, word]), refusal


def check_name(name: str, folder: Path, *, force: bool) -> Path:
    """Return the file of a preset. Raises ConfigError if the name is invalid or taken."""
    path = folder / "cluster" / f"{name}.yaml"
    check_preset_name("cluster", name)
    if path.exists() and not force:
        raise ConfigError(
            "an existing preset is not overwritten",
            seen=str(path),
            action="--force overwrites it; or choose another --name",
        )
    return path


def name_of(cluster: str) -> str:
    """Return a valid name of a preset, from ClusterName."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", cluster).strip("_-")[:50] or "mysite"
    return f"{name}_site" if (conf_dir() / "cluster" / f"{name}.yaml").is_file() else name


def _report(path: Path, preset: Preset, refusal: str, words: Sequence[str]) -> None:
    lines = [f"wrote   {path}"]
    if preset.assumed:
        lines.append(f"assumed {', '.join(preset.assumed)}: check these lines")
    if refusal:
        lines += [
            f"slurm   {refusal}",
            "next    name another --partition or --account with --force, or correct the file; then see whether",
            f"        Slurm takes it: {PROGRAM} {shlex.join(['plan', '+exp=demo', *words])}",
        ]
    else:
        lines += [
            "slurm   takes a job of it (sbatch --test-only)",
            f"next    {PROGRAM} {shlex.join(['doctor', *words])}",
            f"then    {PROGRAM} {shlex.join(['+exp=demo', *words])}",
        ]
    print("\n".join(lines), flush=True)
