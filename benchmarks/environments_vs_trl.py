"""A multi-turn environment compared with TRL's `environment_factory`, on this machine's CPU.

    python -m benchmarks.environments_vs_trl --seeds 0 1 2

Both sides start from the same untrained tiny model and play the same game (guessing_environment.py) on the same rows,
with equal prompts per step, group size, tokens per reply, learning rate, clipping and loss, in float32. A reply is one
token on both sides, and the dialogues have the same tokens: TRL's tokenizer gets the smallest chat template that its
check of tools accepts. They run one after the other in separate processes; TRL samples with Hugging Face generate, its
default without a GPU. Sampled tokens/s is over whole steps, without the first.
"""

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.grpo_tasks import threads
from benchmarks.grpo_vs_trl import Curve, build_clock, build_config, read_curve, run_watched, tokens_per_s
from benchmarks.guessing_environment import RESPONSE, TEMPLATE, TURNS, TrlGuess
from tests.tiny_models import TinyModel

# TRL probes a template with `dumy{}`.
TINY = TinyModel(characters="0123456789:<>=dumy{}", context_length=64)
PROMPTS, GROUP, ROWS = 32, 8, 1000
LONGEST = TURNS + 2 * (TURNS - 1)
"""Tokens of an episode: its replies, and the environment's answer and `:` between them."""


def main() -> int:
    args = parse_args()
    if args.only_trl is not None:
        run_trl(args.only_trl, args.out, args.steps, args.lr)
        return 0
    pairs = [run_seed(seed, args) for seed in args.seeds]
    print(render([ours for ours, _ in pairs], [theirs for _, theirs in pairs]), flush=True)
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("runs/environments_vs_trl"))
    parser.add_argument("--only-trl", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_seed(seed: int, args: argparse.Namespace) -> tuple[Curve, Curve]:
    """Return the curves of slurm_rl and of TRL from one start."""
    from tests.tiny_models import build_tiny_model

    out = args.out / str(seed)
    out.mkdir(parents=True, exist_ok=True)
    write_rows(seed, out / "rows.jsonl")
    if not (out / "start").is_dir():
        build_tiny_model(TINY, seed, out / "start")
    run = out / f"ours-{int(time.time())}"
    environment = Path(__file__).resolve().with_name("guessing_environment.py")
    overrides = [
        "+exp=demo", "model=hf", f"model.path={(out / 'start').absolute()}", "model.dtype=float32", f"seed={seed}",
        "model.gradient_checkpointing=false", f"run_dir={run}", "warmup.num_steps=0", f"trainer.num_steps={args.steps}",
        f"trainer.prompts_per_step={PROMPTS}", f"algorithm.group_size={GROUP}", f"optim.lr={args.lr}",
        "optim.warmup_steps=0", "optim.schedule=constant", "checkpoint.interval=1000000", "eval.greedy=false",
        "data.num_eval=8", f"data.train={(out / 'rows.jsonl').absolute()}", "data.max_prompt_tokens=4",
        f"env.name={environment}:OurGuess", f"env.max_turns={TURNS}", "env.turn_tokens=1",
        f"rollout.max_tokens={LONGEST}",
        "reward.verifiers={}",
    ]  # fmt: skip
    run_watched([sys.executable, "-m", "slurm_rl", *overrides])
    words = [f"--steps={args.steps}", f"--lr={args.lr}", f"--out={args.out}", f"--only-trl={seed}"]
    run_watched([sys.executable, "-m", "benchmarks.environments_vs_trl", *words])
    return read_curve(run), json.loads((out / "trl.json").read_text())


def write_rows(seed: int, path: Path) -> list[dict[str, str]]:
    """Write rows of three random digits and the digit to be guessed."""
    rng = random.Random(seed)
    rows = [{"prompt": f"{number:03d}:", "answer": str(rng.randint(1, 8))} for number in range(ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def run_trl(seed: int, folder: Path, steps: int, lr: float) -> None:
    """Train TRL's GRPOTrainer with the same settings."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOTrainer

    out = folder / str(seed)
    torch.set_num_threads(threads())
    tokenizer = AutoTokenizer.from_pretrained(str(out / "start"))
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
    rows = [
        # The template adds the `:`.
        {"prompt": [{"role": "user", "content": row["prompt"].removesuffix(":")}], "answer": row["answer"]}
        for row in write_rows(seed, out / "rows.jsonl")
    ]
    curve: Curve = []
    trainer: Any = GRPOTrainer(
        str(out / "start"),
        args=build_config(
            output_dir=str(out / "trl"), num_generations=GROUP, per_device_train_batch_size=PROMPTS * GROUP,
            max_completion_length=LONGEST, max_steps=steps, learning_rate=lr, seed=seed,
            max_tool_calling_iterations=TURNS, generation_kwargs={"max_new_tokens": 1},
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=TrlGuess,
        callbacks=[build_clock(curve, lambda: 0.0)],
    )  # fmt: skip
    trainer.train()
    # TRL skips calls beyond its number of iterations: with one iteration less, the last guess is not played.
    assert TrlGuess.most_guesses == TURNS, TrlGuess.most_guesses
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    for point, entry in zip(curve, logged, strict=True):
        point["reward"] = entry["reward"]
        point["tokens"] = entry["completions/mean_length"] * PROMPTS * GROUP
    (out / "trl.json").write_text(json.dumps(curve))


def render(ours: list[Curve], theirs: list[Curve]) -> str:
    """Return the table and both reward curves: mean over seeds with minimum and maximum."""
    rates = [statistics.mean(map(tokens_per_s, curves)) for curves in (ours, theirs)]
    steps = [statistics.median(p["seconds"] for curve in curves for p in curve[1:]) for curves in (ours, theirs)]
    lines = ["", "| the guessing game | slurm_rl | TRL | ratio |", "|---|---|---|---|"]
    lines.append(f"| sampled tokens/s | {rates[0]:.0f} | {rates[1]:.0f} | {rates[0] / rates[1]:.2f} |")
    lines.append(f"| median step, s | {steps[0]:.3f} | {steps[1]:.3f} | {steps[0] / steps[1]:.2f} |")
    lines += ["", "| step | found, slurm_rl | found, TRL |", "|---|---|---|"]
    size = max(1, len(ours[0]) // 6)
    for start in range(0, len(ours[0]), size):
        cells = [_cell([curve[start : start + size] for curve in curves]) for curves in (ours, theirs)]
        lines.append(f"| {start + 1}-{start + size} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _cell(parts: list[Curve]) -> str:
    means = [statistics.mean(point["reward"] for point in part) for part in parts]
    return f"{statistics.mean(means):.3f} ({min(means):.3f} to {max(means):.3f})"


if __name__ == "__main__":
    sys.exit(main())
