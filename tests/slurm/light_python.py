"""Stands in for the nodes' Python: the trainer is a loop without torch, and on wish Ray is a listening socket.

`make_light_python` writes it as a program to be given as cluster.python, so that everything else is the real
thing: command line, plan, sbatch, controller, preflight, node agents.
"""

import json
import os
import shlex
import signal
import socket
import sys
import time
from pathlib import Path


def make_light_python(folder: Path, *, real_ray: bool = False, python: str = sys.executable) -> Path:
    """An executable in `folder`, which every node must see."""
    path = folder / "python"
    words = [python, str(Path(__file__).absolute()), "--real-ray" if real_ray else "--fake-ray"]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)
    return path


def main() -> None:
    real_ray, words = sys.argv[1] == "--real-ray", sys.argv[2:]
    if "slurm_rl.trainers.grpo.main" in words:
        sys.exit(train(Path(words[words.index("--run-dir") + 1]), int(words[words.index("--attempt") + 1])))
    if "slurm_rl.node.ray_start" in words and not real_ray:
        pretend_ray(words)
    os.execv(sys.executable, [sys.executable, *words])


def pretend_ray(words: list[str]) -> None:
    ports = [int(word.partition("=")[2]) for word in words if word.startswith("--port=")]
    listening = [socket.create_server(("", port)) for port in ports]
    time.sleep(600)
    del listening


def find_open(folder: str) -> list[str]:
    """The GPUs of the test cluster that this process may open; there is no driver behind them."""
    found = []
    for path in sorted(Path(folder).glob("gpu*")):
        try:
            path.open("rb").close()
        except PermissionError:
            continue
        except OSError:
            found.append(path.name)
    return found


def train(run: Path, attempt: int) -> int:
    """A step each 0.1 s, until `<run>/finish` is there or a signal asks to save; LIGHT_TRAINER=refuse: bad input."""
    if os.environ.get("LIGHT_TRAINER") == "refuse":
        return end(run, attempt, "failed", 2, cause="line 3 of rows.jsonl must be JSON")
    stopped: list[int] = []
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.append(number))
    steps = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
    step = max(steps, default=0)
    if "DEVICES" in os.environ:
        print(f"sees {os.environ.get('CUDA_VISIBLE_DEVICES')} opens {','.join(find_open(os.environ['DEVICES']))}")
    print(f"trainer of attempt {attempt} goes on after step {step}", flush=True)
    while not stopped and not (run / "finish").exists():
        step += 1
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "stage": "grpo", "reward/mean": step / 100}) + "\n")
        time.sleep(0.1)
    # Of an attempt that was asked to end before its first step it is the one that it began from.
    (run / "checkpoints" / f"step-{step}").mkdir(parents=True, exist_ok=True)
    return end(run, attempt, "checkpointed", 75) if stopped else end(run, attempt, "finished", 0)


def end(run: Path, attempt: int, outcome: str, exit_code: int, cause: str = "") -> int:
    found = {"outcome": outcome, "exit_code": exit_code, "cause": cause}
    (run / "attempts" / str(attempt) / "outcome.json").write_text(json.dumps(found))
    return exit_code


if __name__ == "__main__":
    main()
