"""SFT and DPO compared with TRL's SFTTrainer and DPOTrainer on texts of mixed lengths, on this machine's CPU.

    python -m benchmarks.supervised_vs_trl --ranks 1

Both sides start from the same random model and train on the same rows, equally many per step, in float32 with the same
number of ranks and threads, one after the other in separate processes. Answers have log-normal lengths, as in real data
sets: median 60 characters, some of 500, one token per character. Tokens/s counts non-padding tokens over whole steps,
logging included; it is the median over the steps after the first. The loss is their mean; batches differ. TRL runs
several times: with defaults (8 rows of a rank at once, padded to the longest), with its whole batch at once, with rows
of like length in one batch, and without padding, in one row, where possible.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.run_dir.jsonl import read_rows

Curve = list[dict[str, float]]
"""One entry per step after the first: tokens, seconds, loss."""

LONGEST = 640
WORDS = ("the", "sum", "of", "numbers", "is", "more", "than", "half", "a", "dozen", "so", "we", "carry", "one", "over")
LR = 1e-4
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "SFT": (["task=sft"], {}),
    "DPO, reference in each step": (["task=dpo", "dpo.reference=live"], {}),
    "DPO, reference asked before": (["task=dpo", "dpo.reference=cached"], {"precompute_ref_log_probs": True}),
}
"""Name -> our overrides and TRL's settings."""
SFT_ALONE = ("rows of like length", "padding-free")
"""Variants that TRL's DPOTrainer refuses."""
VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "whole batch at once": {"rows_at_once": None},
    "rows of like length": {"train_sampling_strategy": "group_by_length"},
    "padding-free": {"padding_free": True},
}


def main() -> int:
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only_trl:
        run_trl(args)
        return 0
    write_rows(args)
    build_model(args)
    print("| objective | side | tokens/s | median step, s | loss | slurm_rl is faster by |\n|---|---|---|---|---|---|")
    for case in args.cases:
        ours = run_ours(args, case)
        print(render(case, "slurm_rl", ours, None), flush=True)
        for variant in args.variants:
            if variant in SFT_ALONE and case != "SFT":
                continue
            start_trl(args, case, variant)
            theirs = json.loads((args.out / "trl.json").read_text())
            print(render(case, f"TRL, {variant}", theirs, ours), flush=True)
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/supervised_vs_trl"))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rows", type=int, default=32, help="of one step: answers, or pairs")
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-trl", nargs=2, metavar=("CASE", "VARIANT"), help=argparse.SUPPRESS)
    return parser.parse_args()


def write_rows(args: argparse.Namespace) -> None:
    """Write the data file for both sides: our column `answer` is TRL's `completion`."""
    random = np.random.default_rng(args.seed)

    def text(median: float) -> str:
        length = int(np.clip(random.lognormal(np.log(median), 1.0), 8, 500))
        return " ".join(random.choice(WORDS, length // 2 + 1))[:length].strip()

    lines = []
    for number in range(args.steps * args.rows):
        chosen, rejected = text(60), text(60)
        row = {"prompt": f"{number}: {text(20)[:100]}=", "chosen": chosen, "rejected": rejected + "."}
        lines.append(json.dumps(row | {"answer": chosen, "completion": chosen}) + "\n")
    (args.out / "rows.jsonl").write_text("".join(lines))


def build_model(args: argparse.Namespace) -> None:
    from tests.tiny_models import TinyModel, build_tiny_model

    letters = "".join(map(chr, range(32, 127)))
    tiny = TinyModel(characters=letters, hidden_size=args.hidden_size, num_layers=4, context_length=LONGEST)
    build_tiny_model(tiny, args.seed, args.out / "start")


def threads(args: argparse.Namespace) -> int:
    return max(1, len(os.sched_getaffinity(0)) // int(args.ranks))


def run_ours(args: argparse.Namespace, case: str) -> Curve:
    """Run the whole pipeline as a user does; times are those of its metrics."""
    run = args.out / f"ours-{time.time_ns()}"
    overrides = [
        *CASES[case][0], "model=hf", f"model.path={(args.out / 'start').absolute()}", "model.dtype=float32",
        "model.gradient_checkpointing=false", f"run_dir={run}", f"seed={args.seed}", "warmup.num_steps=0",
        f"data.train={(args.out / 'rows.jsonl').absolute()}", "data.num_eval=0", f"supervised.batch_size={args.rows}",
        f"supervised.max_tokens={LONGEST}", f"policy.num_workers={args.ranks}", f"policy.num_threads={threads(args)}",
        f"optim.lr={LR}", "optim.warmup_steps=0", "optim.schedule=constant", "checkpoint.interval=1000000",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "slurm_rl", *overrides], check=True, stdout=sys.stderr)
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["stage"] in ("sft", "dpo")]
    return build_curve(
        [row["time/stamp"] for row in rows],
        [row["tokens/computed"] for row in rows],
        [row["policy/loss"] for row in rows],
    )


def start_trl(args: argparse.Namespace, case: str, variant: str) -> None:
    argv = [sys.executable, "-m"]
    if args.ranks > 1:
        argv += ["torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}", "-m"]
    argv += ["benchmarks.supervised_vs_trl", *sys.argv[1:], "--only-trl", case, variant]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads(args))}
    subprocess.run(argv, check=True, stdout=sys.stderr, env=environment)


def run_trl(args: argparse.Namespace) -> None:
    """Train one of TRL's trainers with the same settings."""
    import torch
    import trl
    from datasets import load_dataset
    from transformers import AutoTokenizer, TrainerCallback

    torch.set_num_threads(threads(args))
    case, variant = args.only_trl
    stamps: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.append(time.time())

    settings = {"rows_at_once": 8, **CASES[case][1], **VARIANTS[variant]}
    share = args.rows // args.ranks
    at_once = min(share, settings.pop("rows_at_once") or share)
    common = dict(
        output_dir=str(args.out / "trl"), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=at_once, gradient_accumulation_steps=share // at_once, max_length=None,
        max_steps=args.steps, learning_rate=LR, lr_scheduler_type="constant", adam_beta1=0.9, adam_beta2=0.95,
        weight_decay=0.0, max_grad_norm=1.0, logging_steps=1, gradient_checkpointing=False, seed=args.seed,
        dataloader_pin_memory=False, model_init_kwargs={"dtype": "float32"}, **settings,
    )  # fmt: skip
    kind, make = (trl.SFTTrainer, trl.SFTConfig) if case == "SFT" else (trl.DPOTrainer, trl.DPOConfig)
    wanted = ["prompt", "completion"] if case == "SFT" else ["prompt", "chosen", "rejected"]
    rows = load_dataset("json", data_files=str(args.out / "rows.jsonl"), split="train").select_columns(wanted)
    start = str(args.out / "start")
    trainer = kind(
        model=start,
        args=make(**common),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(start),
        callbacks=[Clock()],
    )
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "num_tokens" in entry]
    tokens = np.diff([0.0] + [entry["num_tokens"] for entry in history])
    curve = build_curve(stamps, list(tokens), [entry["loss"] for entry in history])
    if trainer.accelerator.is_main_process:
        (args.out / "trl.json").write_text(json.dumps(curve))


def build_curve(stamps: Sequence[float], tokens: Sequence[float], losses: Sequence[float]) -> Curve:
    steps = zip(np.diff(stamps), tokens[1:], losses[1:], strict=True)
    return [{"seconds": float(s), "tokens": float(n), "loss": float(loss)} for s, n, loss in steps]


def render(case: str, side: str, curve: Curve, ours: Curve | None) -> str:
    """Return one row of the table."""
    rate, step = tokens_per_s(curve), statistics.median(point["seconds"] for point in curve)
    loss = statistics.mean(point["loss"] for point in curve)
    ratio = f"{tokens_per_s(ours) / rate:.2f} x" if ours else ""
    return f"| {case} | {side} | {rate:.0f} | {step:.2f} | {loss:.3f} | {ratio} |"


def tokens_per_s(curve: Curve) -> float:
    # The median, so that other load affects neither side.
    return statistics.median(point["tokens"] / point["seconds"] for point in curve)


if __name__ == "__main__":
    sys.exit(main())
