"""Stand-in for the nodes' Python: a trainer loop without torch and, without `--real-ray`, a listening socket as Ray.

`make_light_python` writes it as an executable for cluster.python; everything else is real: command line, plan, sbatch,
controller, preflight, node agents.
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
    """Write the executable to `folder`, which every node must see."""
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


def find_accessible_gpus(folder: str) -> list[str]:
    """Return the GPUs of the test cluster that this process may open (there is no driver, so opening fails with
    ENXIO).
    """
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
    """Run a step every 0.1 s until `<run>/finish` exists or a signal requests a save.

    With LIGHT_TRAINER=refuse, fail at once with bad input.
    """
    if os.environ.get("LIGHT_TRAINER") == "refuse":
        return end(run, attempt, "failed", 2, cause="line 3 of rows.jsonl must be JSON")
    stopped: list[int] = []
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.append(number))
    steps = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
    step = max(steps, default=0)
    if "DEVICES" in os.environ:
        gpus = ",".join(find_accessible_gpus(os.environ["DEVICES"]))
        print(f"sees {os.environ.get('CUDA_VISIBLE_DEVICES')} opens {gpus}")
    print(f"trainer of attempt {attempt} resumes after step {step}", flush=True)
    while not stopped and not (run / "finish").exists():
        step += 1
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "stage": "grpo", "reward/mean": step / 100}) + "\n")
        time.sleep(0.1)
    # If stopped before the first step, this is the step that the attempt started from.
    (run / "checkpoints" / f"step-{step}").mkdir(parents=True, exist_ok=True)
    return end(run, attempt, "checkpointed", 75) if stopped else end(run, attempt, "finished", 0)


def end(run: Path, attempt: int, outcome: str, exit_code: int, cause: str = "") -> int:
    found = {"outcome": outcome, "exit_code": exit_code, "cause": cause}
    (run / "attempts" / str(attempt) / "outcome.json").write_text(json.dumps(found))
    return exit_code


if __name__ == "__main__":
    main()
