"""Run SFT of the tiny model at two learning rates concurrently and print the losses; arguments are overrides."""

import sys

import slurm_rl

runs = {}
for rate in (2e-4, 2e-3):
    words = ["+exp=sft_tiny", f"optim.lr={rate}", f"run_dir=runs/rate-{rate}", *sys.argv[1:]]
    # On a cluster each run is a job; here each is a process that continues if this script ends.
    runs[rate] = slurm_rl.submit(slurm_rl.load_config(words))
    print(rate, runs[rate].path, runs[rate].state.word)

for rate, run in runs.items():
    state = run.wait()
    if state.word != "finished":
        sys.exit(f"{run.path}: {state}")
    # One row per step and evaluation; pandas.DataFrame(run.metrics()) makes a table.
    losses = [row["eval/loss"] for row in run.metrics() if row["stage"] == "eval"]
    print(rate, "held-out loss", *(f"{loss:.3f}" for loss in losses))
