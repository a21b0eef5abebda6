"""`python -m slurm_rl [verb] ...`: a verb (submit when none is given), then Hydra overrides or a run.

Light on purpose: the verb's module is imported after it is known, torch and ray never.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from slurm_rl.disk import describe_disk, is_full
from slurm_rl.errors import SlurmRLError

VERBS = {
    "prepare": "fetch and check a data set or a model, on the login node (mathv60k, gsm8k, math; model <repo>)",
    "submit": "start a run: here by default, on a cluster with +cluster=...",
    "here": "run in the Slurm allocation around it, from plain sbatch (--print-template: the script)",
    "node": "run over machines without Slurm (RunPod, GCP, dstack, by hand): the same line on each of them",
    "plan": "print what submit would send, without sending it (--json)",
    "image": "build, import or check the container image that the preset names",
    "status": "state of a run, or of all runs under a folder",
    "logs": "print a run's logs (-f to follow, --who driver|node-0|ray-0)",
    "tunnel": "the ssh forward to a run's Ray dashboard and TensorBoard (--open)",
    "attach": "a shell on a node of a running run, in its container (--node, -- command)",
    "cancel": "end a run; what it saved stays",
    "resume": "go on with a run from its newest checkpoint",
    "results": "the runs of a sweep (-m), best first (--metric, --min, --json)",
    "convert": "write a checkpoint as a Hugging Face model (--step, --out)",
    "reward-server": "answer OpenRLHF's reward requests (--host, --port; reward.* overrides)",
    "export": "the same run as a .dstack.yml (dstack), or as the xpk command (xpk)",
    "report": "write summary.json and report.html of a run again",
}
SWEEP_FLAGS = {"-m", "--multirun"}
# Flags that are Hydra's own business; it composes the same config and prints.
HYDRA_FLAGS = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "-sc", "--package", "-p"}


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words.pop(0) if words and words[0] in VERBS else "submit"
    try:
        if verb == "submit" and (words[:1] in (["-h"], ["--help"])):
            from slurm_rl.cli.help import render_help

            print(render_help(VERBS))
            return 0
        if verb == "submit" and HYDRA_FLAGS & set(words):
            from slurm_rl.cli.hydra_app import run_hydra

            return run_hydra(words)
        if verb == "submit" and SWEEP_FLAGS & set(words):
            verb = "sweep"
        module = importlib.import_module(f"slurm_rl.cli.{verb.replace('-', '_')}")
        return int(module.run(words))
    except SlurmRLError as error:
        print(f"slurm_rl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if not is_full(error):
            raise
        print(f"slurm_rl: {error}; {describe_disk(Path(error.filename or '.'))}. Next: make room", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) left; so do we, and nothing is flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
