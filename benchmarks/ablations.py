"""Time and memory of trainer steps with packing and chunked logprobs on and off.

    python -m benchmarks.ablations --steps 4

A random model with a vocabulary of 20,000 takes optimizer steps on random completions of very different lengths, in
float32 on CPU, each case in a separate process. `packing off` gives every sequence its own micro-batch. Every case
computes the same loss, which the table shows. Peak RSS counts the whole process; `over start` is the increase since
before the first step.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VOCABULARY = 20_000
BUDGET = 4096
CHUNK_TOKENS = 256
CASES = {
    "packing on,  chunks off": (True, False),
    "packing on,  chunks on": (True, True),
    "packing off, chunks off": (False, False),
    "packing off, chunks on": (False, True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="timed steps, after one that is not")
    parser.add_argument("--sequences", type=int, default=48)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        measure(args.model, *CASES[args.case], args.steps, args.sequences)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'':26}{'s/step':>8}{'tokens/s':>10}{'peak RSS':>10}{'over start':>12}{'loss':>12}")
        for case in CASES:
            words = [f"--steps={args.steps}", f"--sequences={args.sequences}", f"--model={folder}/model"]
            command = [sys.executable, "-m", "benchmarks.ablations", f"--case={case}", *words]
            found = json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
            )
            print(
                f"{case:26}{found['seconds']:8.2f}{found['tokens'] / found['seconds']:10.0f}{found['peak_mb']:7.0f} MB"
                f"{found['peak_mb'] - found['start_mb']:9.0f} MB{found['loss']:12.6f}"
            )
    return 0


def measure(folder: Path, packing: bool, chunks: bool, num_steps: int, num_sequences: int) -> None:
    """Print one case as JSON; build the model if missing."""
    from slurm_rl.algorithms.packing import distribute
    from slurm_rl.algorithms.policy_loss import build_policy_loss
    from slurm_rl.algorithms.sequences import TrainSequence
    from slurm_rl.config.algorithm import AlgorithmConfig
    from slurm_rl.config.model import ModelConfig
    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.models.policy import PolicyEngine
    from tests.tiny_models import TinyModel, build_tiny_model

    characters = "".join(chr(0x4E00 + i) for i in range(VOCABULARY))
    if not folder.is_dir():
        build_tiny_model(TinyModel(characters=characters, context_length=1024), 0, folder)
    policy = PolicyConfig(num_workers=1, logprob_chunk_tokens=CHUNK_TOKENS if chunks else None)
    engine = PolicyEngine(folder, ModelConfig(path=str(folder)), policy, OptimConfig(lr=1e-4), temperature=1.0)
    random = np.random.default_rng(0)
    sequences = []
    for _ in range(num_sequences):
        prompt, completion = int(random.integers(8, 64)), int(np.exp(random.uniform(np.log(8), np.log(512))))
        sequences.append(
            TrainSequence(
                token_ids=random.integers(2, VOCABULARY, prompt + completion),
                trained_from=prompt,
                weight=1 / (num_sequences * completion),
                advantages=np.full(completion, random.normal(), np.float32),
                old_logprobs=np.full(completion, -np.log(VOCABULARY), np.float32),
            )
        )
    lengths = [len(sequence.token_ids) for sequence in sequences]
    shares = distribute(lengths, 1, BUDGET)[0] if packing else [[i] for i in range(num_sequences)]
    batches = [[sequences[i] for i in share] for share in shares]
    start_mb, seconds, loss = peak_mb(), [], 0.0
    for _ in range(num_steps + 1):
        begin = time.perf_counter()
        loss = engine.train(batches, build_policy_loss(AlgorithmConfig(), None), 1e-4)["loss"]
        seconds.append(time.perf_counter() - begin)
    found = {"seconds": statistics.median(seconds[1:]), "tokens": sum(lengths), "loss": loss}
    print(json.dumps({**found, "start_mb": start_mb, "peak_mb": peak_mb()}))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
