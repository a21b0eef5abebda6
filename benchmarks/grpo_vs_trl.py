"""GRPO compared with TRL's GRPOTrainer on this machine's CPU.

    python -m benchmarks.grpo_vs_trl short prompts short_152k prompts_152k

Both sides start from the same warmed-up model and train on the same rows with equal prompts per step, group size,
lengths, learning rate, clipping and reward function, in float32 with the same number of threads; grpo_tasks.py defines
the tasks. They run one after the other in separate processes. TRL samples with Hugging Face generate, its default
without a GPU, and trains on the whole batch at once, also its default. Trained tokens/s is completion tokens over the
time of whole steps, without the first. Peak memory is PSS summed over all processes of a side (see memory.py); ours
include Ray, vLLM and the reward workers.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import grpo_tasks
from benchmarks.grpo_tasks import TASKS, Task, build_start, threads, write_rows
from benchmarks.memory import MemoryMeter

Curve = list[dict[str, float]]
"""One entry per step: reward, tokens, seconds."""


def main() -> int:
    args = parse_args()
    for name in args.tasks or ["short"]:
        task, out = TASKS[name], args.out / name
        out.mkdir(parents=True, exist_ok=True)
        steps = args.steps or task.steps
        if args.only_trl:
            run_trl(task, out, steps, args)
            continue
        rows = write_rows(task, args.seed, out / "rows.jsonl")
        if not (out / "start").is_dir():
            build_start(task, rows, args.seed, out)
        ours = run_ours(task, out, steps, args)
        words = ["--only-trl", f"--steps={steps}", f"--seed={args.seed}", f"--lr={args.lr}", f"--out={args.out}"]
        gb = run_watched([sys.executable, "-m", "benchmarks.grpo_vs_trl", name, *words])
        print(render(name, ours, {"gb": gb, "curve": json.loads((out / "trl.json").read_text())}), flush=True)
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=TASKS, help="short where none is named")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_vs_trl"))
    parser.add_argument("--steps", type=int, help="each task has its own number")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-trl", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_watched(command: list[str]) -> float:
    """Run to the end; return peak memory in GB."""
    process = subprocess.Popen(command, stdout=sys.stderr)
    meter = MemoryMeter(process.pid)
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} must succeed; it ended with {process.returncode}")
    return meter.close()


def run_ours(task: Task, out: Path, steps: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run the whole pipeline as a user does; step times are the trainer's."""
    run = out / f"ours-{int(time.time())}"
    overrides = [
        "+exp=demo", "model=hf", f"model.path={(out / 'start').absolute()}", "model.dtype=float32",
        "model.gradient_checkpointing=false", f"run_dir={run}", "warmup.num_steps=0", f"seed={args.seed}",
        f"trainer.num_steps={steps}", f"trainer.prompts_per_step={task.prompts_per_step}", f"optim.lr={args.lr}",
        f"algorithm.group_size={args.group_size}", "checkpoint.interval=1000000", "eval.greedy=false",
        "data.num_eval=8", f"data.train={(out / 'rows.jsonl').absolute()}", f"reward.function={task.reward_spec}",
        f"data.max_prompt_tokens={task.max_prompt}", f"rollout.max_tokens={task.max_completion}",
        "optim.warmup_steps=0", "optim.schedule=constant", *task.ours,
    ]  # fmt: skip
    gb = run_watched([sys.executable, "-m", "slurm_rl", *overrides])
    return {"curve": read_curve(run), "gb": gb}


def read_curve(run: Path) -> Curve:
    """Read the steps of one of our runs."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {"reward": row["reward/mean"], "tokens": row["tokens/trained"], "seconds": row["time/step_s"]}
        for row in rows
        if row["stage"] == "grpo"
    ]


def run_trl(task: Task, out: Path, steps: int, args: argparse.Namespace) -> None:
    """Train TRL's GRPOTrainer with the same settings."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOTrainer

    torch.set_num_threads(threads())
    rows = write_rows(task, args.seed, out / "rows.jsonl")
    score = getattr(grpo_tasks, task.reward)
    curve: Curve = []
    counts = {"tokens": 0.0}

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        counts["tokens"] = float(sum(len(ids) for ids in completion_ids))
        return list(score([p + c for p, c in zip(prompts, completions, strict=True)], prompts, answer))

    start = str(out / "start")
    config = build_config(
        output_dir=str(out / "trl"), num_generations=args.group_size, max_steps=steps, learning_rate=args.lr,
        per_device_train_batch_size=task.prompts_per_step * args.group_size, seed=args.seed,
        max_completion_length=task.max_completion,
    )  # fmt: skip
    trainer = GRPOTrainer(
        start,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(start),
        callbacks=[build_clock(curve, lambda: counts["tokens"])],
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    for point, value in zip(curve, rewards, strict=True):
        point["reward"] = value
    (out / "trl.json").write_text(json.dumps(curve))


def build_config(**words: Any) -> Any:
    """Return TRL's config with the settings of ours."""
    from trl import GRPOConfig

    return GRPOConfig(
        use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, save_strategy="no", lr_scheduler_type="constant",
        adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, beta=0.0, epsilon=0.2, epsilon_high=0.28,
        loss_type="dapo", temperature=1.0, logging_steps=1, gradient_checkpointing=False,
        dataloader_pin_memory=False, model_init_kwargs={"dtype": "float32"}, **words,
    )  # fmt: skip


def build_clock(curve: Curve, count: Callable[[], float]) -> Any:
    """Return a TRL callback that records seconds and tokens of each step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            curve.append({"tokens": count(), "seconds": time.perf_counter() - self.start})

    return Clock()


def render(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Render the table and both reward curves."""
    lines = ["", f"| {name} | slurm_rl | TRL | ratio |", "|---|---|---|---|"]
    ours_rate, trl_rate = tokens_per_s(ours["curve"]), tokens_per_s(theirs["curve"])
    lines.append(f"| trained tokens/s | {ours_rate:.0f} | {trl_rate:.0f} | {ours_rate / trl_rate:.2f} |")
    ours_step, trl_step = (statistics.median(p["seconds"] for p in c["curve"][1:]) for c in (ours, theirs))
    lines.append(f"| median step, s | {ours_step:.3f} | {trl_step:.3f} | {ours_step / trl_step:.2f} |")
    lines.append(
        f"| peak memory, GB of PSS | {ours['gb']:.2f} | {theirs['gb']:.2f} | {ours['gb'] / theirs['gb']:.2f} |"
    )
    lines += ["", "| step | reward slurm_rl | reward TRL |", "|---|---|---|"]
    size = max(1, min(10, len(ours["curve"]) // 4))
    for start in range(0, len(ours["curve"]), size):
        means = [np.mean([p["reward"] for p in c["curve"][start : start + size]]) for c in (ours, theirs)]
        lines.append(f"| {start + 1}-{start + size} | {means[0]:.3f} | {means[1]:.3f} |")
    return "\n".join(lines)


def tokens_per_s(curve: Curve) -> float:
    return sum(p["tokens"] for p in curve[1:]) / sum(p["seconds"] for p in curve[1:])


if __name__ == "__main__":
    sys.exit(main())
