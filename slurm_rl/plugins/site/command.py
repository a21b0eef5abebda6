"""`site`: write the preset of this cluster: look, ask, write down with the evidence, have Slurm judge it."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_rl.cli.common import compose_run
from slurm_rl.cli.parser import PROGRAM, parse
from slurm_rl.config.load import SITE_DIR_VARIABLE, conf_dir, own_dir
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError, SlurmRLError, SubmitError
from slurm_rl.launch.controller.attempts import EXIT_FAILED
from slurm_rl.launch.jobs import open_launcher
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.plugins.health.command import run as run_doctor
from slurm_rl.plugins.site.machine import Findings, inspect_site
from slurm_rl.plugins.site.preset import Preset, build_preset
from slurm_rl.plugins.site.questions import Answers, Asker, answer_all, ask_terminal
from slurm_rl.run_dir.run_dir import expect_writable, write_text

_ANSWERS = ("partition", "accelerator", "account", "run_root", "image", "network")
_MOST_REFUSED = 4
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}"
_LONGEST_NAME = 50


def run(args: argparse.Namespace) -> int:
    if args.rest:
        raise ConfigError("`site` takes only flags", seen=" ".join(args.rest), action=f"see {PROGRAM} site --help")
    folder = _find_folder(args.config_dir)
    if args.name is not None:
        check_name(args.name, folder, force=args.force)
    print("site    looks at Slurm and at this machine", file=sys.stderr, flush=True)
    findings = inspect_site()
    name = args.name or name_of(findings.settings.get("ClusterName", ""))
    path = check_name(name, folder, force=args.force)
    judged = find_admitted(name, findings, _read_answers(args), _choose_asker(args))
    save_preset(path, judged.preset.text)
    more = _config_dir_words(folder)
    _tell(path, judged, name, more, is_checked=args.check)
    if judged.refusal:
        return EXIT_FAILED
    if args.check:
        return run_doctor(parse("doctor", [f"+cluster={name}", *more]))
    return 0


def save_preset(path: Path, text: str) -> None:
    """The old file or the new one, never a half.

    Raises:
        RunDirError: the folder cannot be written.
    """
    with expect_writable(path.parent, "or choose another --config-dir", what="the folder for presets"):
        write_text(path, text)


@dataclass(frozen=True)
class Judged:
    """A preset, and Slurm's verdict."""

    preset: Preset
    notes: tuple[str, ...] = ()
    refusal: str = ""
    """"" when Slurm takes a job of it."""
    has_answered: bool = True


def find_admitted(name: str, findings: Findings, told: Mapping[str, str], ask: Asker | None) -> Judged:
    """The preset with answers that Slurm takes; where it takes none, with the likeliest.

    If the partition is assumed and Slurm refuses it, the next likely one is tried.
    """
    answers = answer_all(findings, told, ask)
    first = found = judge(name, findings, answers)
    for _ in range(_MOST_REFUSED):
        if not (found.refusal and found.has_answered and answers["partition"].is_assumed):
            break
        findings = replace(findings, refused={**findings.refused, answers["partition"].value: found.refusal})
        try:
            answers = answer_all(findings, told, None)
        except ConfigError:  # none of the rest is open to this user
            break
        found = judge(name, findings, answers)
    return first if found.refusal else found


def judge(name: str, findings: Findings, answers: Answers) -> Judged:
    """Compose the preset, plan the demo with it, and ask Slurm whether it takes that job. Nothing is queued."""
    date = time.strftime("%Y-%m-%d")
    origin = f"{name}: written by `{PROGRAM} site` on {findings.host}, {date}. Behind each value: where it comes from."
    with tempfile.TemporaryDirectory(prefix="slurm_rl-site-") as folder:
        write_text(Path(folder, "cluster", f"{name}.yaml"), build_preset(findings, answers, [origin]).text)
        _, plan, _ = compose_run([f"cluster={name}", "exp=demo"], folder, is_run=False)
    notes: list[str] = []
    refusal, has_answered = "", True
    try:
        _, notes = open_launcher(plan.launcher).check(plan)
        word = f"`sbatch --test-only` took a job of it on {date}."
    except SlurmUnavailableError as error:
        has_answered = False
        refusal = f"not judged, since Slurm gave no answer: {_one_line(error)}"
        word = f"NOT CHECKED by `sbatch --test-only`: {_one_line(error)}"
    except SubmitError as error:
        refusal = _one_line(error)
        word = f"REFUSED by `sbatch --test-only` on {date}: {refusal}"
    return Judged(build_preset(findings, answers, [origin, word]), tuple(notes), refusal, has_answered)


def _one_line(error: SlurmRLError) -> str:
    return " ".join(str(error).split())


def check_name(name: str, folder: Path, *, force: bool) -> Path:
    """The file of a preset of this name.

    Raises:
        ConfigError: no file or no word of a command line could have it, or it is taken.
    """
    path = folder / "cluster" / f"{name}.yaml"
    if not re.fullmatch(_NAME, name):
        raise ConfigError(
            "the name of a preset must consist of letters, digits, _ and -",
            seen=repr(name),
            action="choose another --name",
        )
    if (conf_dir() / "cluster" / path.name).is_file():
        raise ConfigError(
            "a preset must not have the name of a built-in one", seen=name, action="choose another --name"
        )
    if path.exists() and not force:
        raise ConfigError(
            "an existing preset is not overwritten",
            seen=str(path),
            action="--force overwrites it; or choose another --name",
        )
    return path


def name_of(cluster: str) -> str:
    """Return a valid name of a preset, from ClusterName."""
    said = re.sub(r"[^A-Za-z0-9_-]+", "_", cluster).strip("_-")[:_LONGEST_NAME] or "mysite"
    return f"{said}_site" if (conf_dir() / "cluster" / f"{said}.yaml").is_file() else said


def _find_folder(config_dir: str | None) -> Path:
    """--config-dir, the variable, or the user's own; it need not be there yet."""
    named = config_dir or os.environ.get(SITE_DIR_VARIABLE)
    return expand_user(named).absolute() if named else own_dir()


def _config_dir_words(folder: Path) -> list[str]:
    """Return the flags with which other verbs find a preset in this folder."""
    known = {own_dir(), expand_user(os.environ.get(SITE_DIR_VARIABLE) or own_dir()).absolute()}
    return [] if folder in known else ["--config-dir", str(folder)]


def _read_answers(flags: argparse.Namespace) -> dict[str, str]:
    found = {key: getattr(flags, key) for key in _ANSWERS}
    return {key: value for key, value in found.items() if value is not None}


def _choose_asker(args: argparse.Namespace) -> Asker | None:
    if args.yes:
        return None
    if sys.stdin.isatty() and sys.stderr.isatty():
        return ask_terminal
    print("site    no terminal to ask on: what is not known is assumed, as with --yes", file=sys.stderr)
    return None


def _tell(path: Path, judged: Judged, name: str, more: Sequence[str], *, is_checked: bool) -> None:
    words = [f"+cluster={name}", *more]
    if judged.notes:
        print("\n".join(judged.notes), file=sys.stderr, flush=True)
    lines = [f"wrote   {path}"]
    if judged.preset.assumed:
        lines.append(f"assumed {', '.join(judged.preset.assumed)}: look at these lines")
    if judged.refusal:
        lines.append(f"slurm   {judged.refusal}")
        again = shlex.join(["plan", "+exp=demo", *words])
        lines.append(f"next    mend the file, then see whether Slurm takes it: {PROGRAM} {again}")
    else:
        lines.append("slurm   takes a job of it (sbatch --test-only)")
        lines += [] if is_checked else [f"next    {PROGRAM} {shlex.join(['doctor', *words])}"]
        lines.append(f"then    {PROGRAM} {shlex.join(['+exp=demo', *words])}")
    print("\n".join(lines), flush=True)
