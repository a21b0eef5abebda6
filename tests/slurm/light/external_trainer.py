"""Stand-in for external trainers that need GPUs: writes checkpoints in their layouts and resumes by their flags.

    external_trainer.py <story.json> <the trainer's own arguments>

The story lists the files of a complete checkpoint for each step, and those of an incomplete one. The first attempt
saves steps 4 and 8, half of step 12, and waits to be ended; a later attempt runs to the end.
"""

import json
import os
import re
import sys
import time
from pathlib import Path

# Flag that sets the start step of each trainer; the other trainers pick the newest name, as their own code does.
FLAGS = {
    "verl": r'trainer\.resume_from_path="?.*global_step_(\d+)"?',
    "trl": r"--resume_from_checkpoint .*checkpoint-(\d+)",
    "prime_rl": r"--resume\.step (\d+)",
    "skyrl": r'trainer\.resume_path="?.*global_step_(\d+)"?',
}


def find_start(layout: str, root: Path, line: str) -> int:
    if layout in FLAGS:
        found = re.search(FLAGS[layout], line)
        return int(found[1]) if found else 0
    if layout == "slime":
        return int((root / "latest_checkpointed_iteration.txt").read_text()) if "--load " in line else 0
    if layout == "open_instruct":
        latest = root / "state/latest"
        return int(latest.read_text().rpartition("step")[2]) if latest.exists() else 0
    if layout == "openrlhf":
        latest = (root / "_actor/latest").read_text() if "--ckpt.load_enable" in line else ""
        return int(latest.rpartition("step")[2] or 0)
    if layout == "torchtitan":
        return max((int(one.parent.name[5:]) for one in root.glob("checkpoint/step-*/.metadata")), default=0)
    names = [path.name for pattern in ("step_*", "*/checkpoints/*") for path in root.glob(pattern)]
    return max((int(name.rpartition("_")[2]) for name in names if "orbax" not in name), default=0)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def main() -> None:
    story, root = json.loads(Path(sys.argv[1]).read_text()), Path(os.environ["SLURM_RL_CHECKPOINTS"])
    start = find_start(story["layout"], root, " ".join(sys.argv[2:]))
    print(f"rank {os.environ.get('RANK')} of {os.environ.get('WORLD_SIZE')} resumes from step {start}", flush=True)
    if os.environ.get("RANK", "0") != "0":
        while not (root / "done").exists():
            time.sleep(0.1)
        return
    is_first = os.environ["SLURM_RL_RESUME"] == "0"
    for step in (4, 8, 12):
        if step <= start:
            continue
        if is_first and step == 12:
            write(root, story["half"])
            print("waits to be ended", flush=True)
            time.sleep(600)
        write(root, story["whole"][str(step)])
    (root / "done").touch()


if __name__ == "__main__":
    main()
