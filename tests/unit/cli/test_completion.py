"""Tab completion, in a real bash and, where it is installed, a real zsh."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli.parser import load_verbs
from slurm_rl.config.keys import list_keys
from slurm_rl.config.load import conf_dir
from slurm_rl.config.presets import list_presets

VERBS = load_verbs().by_name
PRESETS = list_presets([conf_dir()])
OURS = "python -m slurm_rl "
# What bash's readline hands over: `=` is a word of its own.
ASK = r"""
ask() {
  COMP_LINE=$1 COMP_POINT=${#1}
  read -ra COMP_WORDS <<< "${1//=/ = }"
  [[ $1 == *[\ =] ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  $(complete -p "${COMP_WORDS[0]}" | sed 's/.* -F \([^ ]*\) .*/\1/')
  printf '%s|' "${COMPREPLY[@]}"; echo
}
while IFS= read -r line; do ask "$line"; done
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "script.sh"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["config", "--completion"]) == 0
    return path


def complete(script: Path, *lines: str, folder: Path | None = None) -> list[list[str]]:
    """What each line may go on with."""
    words = ["bash", "--norc", "-c", f"source {script}\n{ASK}"]
    done = subprocess.run(words, input="\n".join([*lines, ""]), cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [[word for word in line.split("|") if word] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{OURS}pl", ["plan "]),
        (f"{OURS}plan +exp=de", ["demo "]),
        (f"{OURS}+exp=rm", ["rm_llama3_8b ", "rm_tiny "]),
        (f"{OURS}plan model=", [f"{name} " for name in PRESETS["model"]]),
        (f"{OURS}optim.l", ["optim.lr="]),
        (f"{OURS}plan opt", ["optim."]),
        (f"{OURS}plan +exp=demo critic.optim.s", ["critic.optim.schedule="]),
        (f"{OURS}plan rollout.weight_transfer=n", ["nccl "]),
        (f"{OURS}plan ray.dashboard=", ["true ", "false "]),
        (
            f"{OURS}plan algorithm.correction.kind=",
            ["auto ", "token_tis ", "sequence_mask ", "geometric_mask ", "icepop ", "null "],
        ),
        (f"{OURS}plan optim.lr=", []),
        (
            f"{OURS}plan --",
            [
                "--config-dir ",
                "--json ",
                "--script ",
                "--as ",
                "--out ",
                "--image ",
                "--volume ",
                "--cluster ",
                "--tpu-type ",
                "--project ",
                "--num-slices ",
                "--priority ",
                "--help ",
            ],
        ),
        (f"{OURS}plan +cluster.e", ["+cluster.env."]),
        (f"{OURS}plan +cluster.env.", []),
        (f"{OURS}plan +al", ["+algorithm="]),
        (f"{OURS}config +al", ["+algorithm "]),
        (f"{OURS}config optim.l", ["optim.lr "]),
        (f"{OURS}image b", ["build "]),
        (f"{OURS}image build b", []),
        (f"{OURS}export xpk --priority v", ["very-low ", "very-high "]),
        (f"{OURS}frobnicate optim.l", ["optim.lr="]),
        ("/opt/venv/bin/python3 -m slurm_rl pl", []),
        ("slurm-rl pl", ["plan "]),
        ("slurm-rl plan +exp=de", ["demo "]),
        ("python -m http.ser", []),
        ("python my.py pl", []),
    ],
)
def test_a_tab_offers_what_may_follow(line: str, expected: list[str], script: Path) -> None:
    lines = [line.replace("/opt/venv/bin/python3", "python3")]
    if line.startswith("/"):
        expected = ["plan "]
    assert complete(script, *lines) == [expected]


def test_every_verb_flag_preset_and_key_is_known(script: Path) -> None:
    verbs = [f"{OURS}{verb}" for verb in VERBS]
    assert all(f"{verb} " in found for verb, found in zip(VERBS, complete(script, *verbs), strict=True))
    flags = [(verb, name) for verb, row in VERBS.items() for flag in row.list_flags() for name in flag.option_strings]
    lines = [f"{OURS}{verb} {name}" for verb, name in flags]
    assert all(f"{name} " in found for (_, name), found in zip(flags, complete(script, *lines), strict=True))
    presets = [(group, name) for group, names in PRESETS.items() for name in names]
    lines = [f"{OURS}plan +{group}={name}" for group, name in presets]
    assert all(f"{name} " in found for (_, name), found in zip(presets, complete(script, *lines), strict=True))
    keys = [key.name for key in list_keys().values() if not key.is_section]
    lines = [f"{OURS}plan {key}" for key in keys]
    assert all(f"{key}=" in found for key, found in zip(keys, complete(script, *lines), strict=True))


def test_verbs_of_runs_and_flags_with_paths_offer_folders(script: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "math 1").mkdir(parents=True)
    (tmp_path / "rest.txt").write_text("")
    lines = [f"{OURS}status r", f"{OURS}status runs/", f"{OURS}plan --config-dir r", f"{OURS}plan r"]
    status, below, config_dir, plan = complete(script, *lines, folder=tmp_path)
    assert (status, below, config_dir) == (["runs/"], ["runs/math 1/"], ["runs/"])
    assert "runs/" not in plan and "rollout." in plan


def test_a_site_is_asked_for_its_presets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "ours.yaml").write_text("# Ours.\n")
    assert main(["config", "--completion", "--config-dir", str(tmp_path)]) == 0
    (tmp_path / "script.sh").write_text(capsys.readouterr().out)
    assert complete(tmp_path / "script.sh", f"{OURS}+cluster=ou") == [["ours "]]


def test_other_modules_keep_the_completion_that_they_had(script: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.sh"
    before = "_before() { COMPREPLY=(http.server); }\ncomplete -F _before python\ncompopt() { :; }\n"
    # Evaluated twice, as in a shell that is started from another.
    both.write_text(f"{before}source {script}\nsource {script}\n")
    assert complete(both, "python -m ht", f"{OURS}pl") == [["http.server"], ["plan "]]


def test_a_tab_is_a_matter_of_milliseconds(script: Path) -> None:
    """In times of what this machine takes to start the interpreter, which a TAB never does."""
    lines = [f"{OURS}plan +exp=demo "] * 40
    begin = time.perf_counter()
    complete(script, *lines)
    took, begin = time.perf_counter() - begin, time.perf_counter()
    for _ in range(3):
        subprocess.run(["python3", "-c", "import json, argparse, pathlib"], check=True)
    assert took / len(lines) < (time.perf_counter() - begin) / 3


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("plan +exp=dem\t", "plan +exp=demo"),
        ("pla\t+cluster=nvidia_h1\toptim.l\t1e-4", "plan +cluster=nvidia_h100 optim.lr=1e-4"),
        ("config algorithm.correction.k\t", "config algorithm.correction.kind"),
        ("plan optim.sched\tcos\t", "plan optim.schedule=cosine"),
    ],
)
def test_at_a_keyboard(shell: str, typed: str, expected: str, script: Path, tmp_path: Path) -> None:
    """`python` is a function that says with what it is called."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    start = [shell, "--norc", "--noprofile", "-i"] if shell == "bash" else [shell, "-f", "-i"]
    python = 'python() { echo "GOT<${*}>"; }'
    told = press(start, [f"{python}; source {script}; echo REA''DY"], f"{OURS}{typed}", tmp_path)
    assert f"GOT<-m slurm_rl {expected}>" in told, told


def press(start: list[str], first: list[str], typed: str, folder: Path) -> str:
    """What a terminal shows until the typed line has been run."""
    process, terminal = pty.fork()
    if process == 0:
        env = {**os.environ, "HOME": str(folder), "TERM": "dumb", "PS1": "$ ", "HISTFILE": "", "ZDOTDIR": str(folder)}
        os.execvpe(start[0], start, env)
    shown = ""
    try:
        for line, awaited in ((first[0], r"READY"), (typed, r"GOT<[^$]*?>\r?\n")):
            os.write(terminal, f"{line}\n".encode())
            deadline = time.monotonic() + 60
            while not re.search(awaited, shown) and time.monotonic() < deadline:
                if select.select([terminal], [], [], 1)[0]:
                    shown += os.read(terminal, 65536).decode(errors="replace")
    finally:
        os.close(terminal)
        os.kill(process, 9)
        os.waitpid(process, 0)
    return shown


def test_it_takes_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--completion", "bash"]) == 2
    assert "takes no words; got bash" in capsys.readouterr().err
