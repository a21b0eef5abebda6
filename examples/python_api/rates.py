"""SFT of the tiny model at two learning rates, side by side, and what came of them; further words are overrides."""

import sys

import slurm_rl

runs = {}
for rate in (2e-4, 2e-3):
    words = ["+exp=sft_tiny", f"optim.lr={rate}", f"run_dir=runs/rate-{rate}", *sys.argv[1:]]
    # On a cluster each is a job, here processes that go on should this script end.
    runs[rate] = slurm_rl.submit(slurm_rl.load_config(words))
    print(rate, runs[rate].path, runs[rate].state.word)

for rate, run in runs.items():
    state = run.wait()
    if state.word != "finished":
        sys.exit(f"{run.path}: {state}")
    # One row a step and evaluation; pandas.DataFrame(run.metrics()) is a table of them.
    losses = [row["eval/loss"] for row in run.metrics() if row["stage"] == "eval"]
    print(rate, "held-out loss", *(f"{loss:.3f}" for loss in losses))
