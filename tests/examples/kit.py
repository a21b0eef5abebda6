"""Run the commands of the examples' READMEs with small sizes appended."""

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.__main__ import main
from tests.docs.markdown import OF_COMMANDS, Block, read_blocks

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LOCAL_OVERRIDES = ("policy.num_threads=1", "ray.dashboard=false", "logging.wandb.mode=disabled")
"""Overrides for every run."""
Words = Sequence[str]


def read_commands(name: str) -> list[list[str]]:
    """Return the words of each command of the example's README."""
    return [words for block in read_blocks(EXAMPLES / name / "README.md") for words in _commands_of(block)]


def run_readme(name: str, folder: Path, sizes: Mapping[str, Words], env: Mapping[str, str] | None = None) -> str:
    """Run all commands in order, in a folder that contains `examples`; `plan` runs in this process.

    Args:
        sizes: experiment or script -> words appended to its command.
        env: additional environment variables.

    Returns:
        Output of all commands.
    """
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    printed = []
    for command in read_commands(name):
        if command[1:4] == ["-m", "slurm_rl", "plan"]:
            with contextlib.chdir(folder):
                assert main(command[3:]) == 0, shlex.join(command)
            continue
        more = next(([*LOCAL_OVERRIDES, *words] for what, words in sizes.items() if _runs(what, command)), [])
        done = subprocess.run(
            [sys.executable, *command[1:], *more],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}"
        printed.append(done.stdout)
    return "".join(printed)


def _commands_of(block: Block) -> list[list[str]]:
    return block.commands() if block.language in OF_COMMANDS else []


def _runs(name: str, command: Words) -> bool:
    return f"+exp={name}" in command or Path(command[1]).name == name
