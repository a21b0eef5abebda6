"""Time of optimizer steps with `policy.prefix_sharing` off and on, which reads a group's prompt once.

    python -m benchmarks.shared_prompts --prompt 512 --completion 64 --group-size 8

A small random model in float32 on CPU with random tokens, in one process; the two take turns step by step, so that
other load affects both. Every pair of steps computes the same loss, which is checked to 1e-5.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.models.policy import PolicyEngine
from tests.tiny_models import TinyModel, build_tiny_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="timed pairs, after one that is not")
    args = parser.parse_args()
    loss_fn, seconds = build_policy_loss(AlgorithmConfig(), None), {False: [0.0], True: [0.0]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        build_tiny_model(TinyModel(context_length=args.prompt + args.completion), 0, path)
        model = ModelConfig(path=str(path), gradient_checkpointing=False)
        engines = {
            share: PolicyEngine(path, model, PolicyConfig(prefix_sharing=share), OptimConfig(lr=1e-4), temperature=1.0)
            for share in seconds
        }
    batches = build_groups(args)
    for _ in range(args.steps + 1):
        losses = []
        for share, engine in engines.items():
            begin = time.perf_counter()
            losses.append(engine.train(batches, loss_fn, 1e-4)["loss"])
            seconds[share].append(time.perf_counter() - begin)
        assert abs(losses[0] - losses[1]) < 1e-5, losses
    apart, shared = (statistics.median(seconds[share][2:]) for share in (False, True))
    tokens = args.groups * args.group_size * args.completion
    print("| policy.prefix_sharing | s/step | trained tokens/s |\n|---|---|---|")
    print(f"| false | {apart:.2f} | {tokens / apart:.0f} |\n| true | {shared:.2f} | {tokens / shared:.0f} |")
    print(f"{apart / shared:.2f} x")


def build_groups(args: argparse.Namespace) -> list[list[TrainSequence]]:
    """Return one micro-batch per group."""
    random = np.random.default_rng(0)
    batches = []
    for _ in range(args.groups):
        prompt = random.integers(2, 14, args.prompt)
        batches.append(
            [
                TrainSequence(
                    token_ids=np.concatenate([prompt, random.integers(2, 14, args.completion)]),
                    trained_from=args.prompt,
                    weight=1 / (args.groups * args.group_size * args.completion),
                    advantages=np.full(args.completion, random.normal(), np.float32),
                    old_logprobs=np.full(args.completion, -2.6, np.float32),
                )
                for _ in range(args.group_size)
            ]
        )
    return batches


if __name__ == "__main__":
    main()
