"""One GRPO step loop beside TRL's GRPOTrainer, on this machine's CPU, in one run.

    python -m benchmarks.grpo_vs_trl --steps 30

The task is to write a number several times over: `45*6=` -> `454545454545`, so completions have between 1
and 36 tokens, as answers of language models have many lengths. Both start from the same warmed-up model and
train on the same rows with the same group size, lengths, learning rate, clipping and reward, in float32 with
the same number of threads. They run one after the other in processes of their own. TRL samples with Hugging
Face generate, its default without a GPU. Trained tokens/s is completion tokens over the time of the whole
step, the first step left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

Curve = list[dict[str, float]]
"""One entry a step: reward, tokens, seconds."""

MAX_PROMPT, MAX_COMPLETION = 7, 40
CHARACTERS = "0123456789*="


def main() -> int:
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only_trl:
        run_trl(args)
        return 0
    write_rows(args)
    if not (args.out / "start").is_dir():
        warm_up(args)
    ours = run_ours(args)
    subprocess.run([sys.executable, "-m", "benchmarks.grpo_vs_trl", "--only-trl", *sys.argv[1:]], check=True)
    theirs = json.loads((args.out / "trl.json").read_text())
    print(render(ours, theirs))
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_vs_trl"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup-steps", type=int, default=300)
    parser.add_argument("--only-trl", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def write_rows(args: argparse.Namespace) -> list[dict[str, str]]:
    """The data file both sides read. No row twice: ours holds some out, and would drop their twins as well."""
    random = np.random.default_rng(args.seed)
    answers: dict[str, str] = {}
    while len(answers) < 6000:
        number, times = str(random.integers(1, 10 ** random.integers(1, 5))), int(random.integers(1, 10))
        answers[f"{number}*{times}="] = number * times
    rows = [{"prompt": prompt, "answer": answer} for prompt, answer in answers.items()]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (args.out / "rows.jsonl").write_text(text)
    return rows


def warm_up(args: argparse.Namespace) -> None:
    """Train the tiny model on answers until it gets some rows right; both sides start from it."""
    from slurm_rl.config.model import ModelConfig, TinyModelConfig
    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.train.engine.policy import PolicyEngine
    from slurm_rl.train.engine.tiny import build_tiny_model
    from slurm_rl.train.grpo.loss import build_warmup_loss
    from slurm_rl.train.math.packing import distribute
    from slurm_rl.train.types import TrainSequence

    tiny = TinyModelConfig(characters=CHARACTERS, context_length=64)
    build_tiny_model(tiny, args.seed, args.out / "init")
    optim = OptimConfig(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    policy = PolicyConfig(num_workers=1, num_threads=threads())
    engine = PolicyEngine(args.out / "init", ModelConfig(tiny=tiny), policy, optim, temperature=1.0)
    rows = write_rows(args)
    random = np.random.default_rng(args.seed)
    for step in range(args.warmup_steps):
        batch = [rows[i] for i in random.integers(0, len(rows), 256)]
        sequences = []
        for row in batch:
            prompt, answer = engine.tokenizer.encode(row["prompt"]), engine.tokenizer.encode(row["answer"])
            tokens = np.asarray([*prompt, *answer, engine.tokenizer.eos_token_id])
            sequences.append(TrainSequence(token_ids=tokens, trained_from=len(prompt), weight=1 / 3800))
        share = distribute([len(s.token_ids) for s in sequences], 1, 8192)[0]
        engine.train([[sequences[i] for i in b] for b in share], build_warmup_loss(), 2e-3 * min(1, (step + 1) / 30))
    engine.export(args.out / "start")


def threads() -> int:
    return len(os.sched_getaffinity(0))


def run_ours(args: argparse.Namespace) -> dict[str, Any]:
    """The whole pipeline, as a user runs it; the step times are the trainer's own."""
    run = args.out / f"ours-{int(time.time())}"
    overrides = [
        "model=hf", f"model.path={(args.out / 'start').absolute()}", "model.dtype=float32",
        "model.gradient_checkpointing=false", f"run_dir={run}", "warmup.num_steps=0", f"seed={args.seed}",
        f"trainer.num_steps={args.steps}", f"trainer.prompts_per_step={args.prompts}", f"optim.lr={args.lr}",
        f"algorithm.group_size={args.group_size}", "checkpoint.every=1000000",
        f"data.train={(args.out / 'rows.jsonl').absolute()}",
        f"data.max_prompt_tokens={MAX_PROMPT}", f"rollout.max_tokens={MAX_COMPLETION}", "optim.warmup_steps=0",
        "optim.schedule=constant",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "slurm_rl", *overrides], check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [
        {"reward": row["reward/mean"], "tokens": row["tokens/trained"], "seconds": row["time/step_s"]}
        for row in rows
        if row["stage"] == "grpo"
    ]
    return {"curve": curve}


def run_trl(args: argparse.Namespace) -> None:
    """TRL's GRPOTrainer with the same numbers."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(threads())
    rows = write_rows(args)
    curve: Curve = []
    counts = {"tokens": 0.0}

    def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        counts["tokens"] = float(sum(len(ids) for ids in completion_ids))
        return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            curve.append({"tokens": counts["tokens"], "seconds": time.perf_counter() - self.start})

    start = str(args.out / "start")
    config = GRPOConfig(
        output_dir=str(args.out / "trl"), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=args.prompts * args.group_size, num_generations=args.group_size,
        max_completion_length=MAX_COMPLETION, max_steps=args.steps, learning_rate=args.lr, lr_scheduler_type="constant",
        adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, beta=0.0, epsilon=0.2, epsilon_high=0.28,
        loss_type="dapo", temperature=1.0, logging_steps=1, gradient_checkpointing=False, seed=args.seed,
        dataloader_pin_memory=False, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = GRPOTrainer(
        start,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(start),
        callbacks=[Clock()],
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    for point, value in zip(curve, rewards, strict=True):
        point["reward"] = value
    (args.out / "trl.json").write_text(json.dumps({"curve": curve}))


def render(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The table, and the two reward curves side by side."""
    lines = ["", "| | slurm_rl | TRL | ratio |", "|---|---|---|---|"]
    ours_rate, trl_rate = tokens_per_s(ours["curve"]), tokens_per_s(theirs["curve"])
    lines.append(f"| trained tokens/s | {ours_rate:.0f} | {trl_rate:.0f} | {ours_rate / trl_rate:.2f} |")
    ours_step, trl_step = (statistics.median(p["seconds"] for p in c["curve"][1:]) for c in (ours, theirs))
    lines.append(f"| median step, s | {ours_step:.3f} | {trl_step:.3f} | {ours_step / trl_step:.2f} |")
    lines += ["", "| step | reward slurm_rl | reward TRL |", "|---|---|---|"]
    for start in range(0, len(ours["curve"]), 10):
        means = [np.mean([p["reward"] for p in c["curve"][start : start + 10]]) for c in (ours, theirs)]
        lines.append(f"| {start + 1}-{start + 10} | {means[0]:.3f} | {means[1]:.3f} |")
    return "\n".join(lines)


def tokens_per_s(curve: Curve) -> float:
    return sum(p["tokens"] for p in curve[1:]) / sum(p["seconds"] for p in curve[1:])


if __name__ == "__main__":
    sys.exit(main())
