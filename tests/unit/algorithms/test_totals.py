from slurm_rl.trainers.grpo.step_metrics import training_metrics


def test_totals_average_tokens_and_take_maxima() -> None:
    minibatches = [
        {"loss": 1.0, "grad_norm": 2.0, "mismatch/mean": 3.0, "mismatch/max": 0.5, "policy/clip_fraction": 1.0},
        {"loss": 3.0, "grad_norm": 4.0, "mismatch/mean": 5.0, "mismatch/max": 0.75, "policy/clip_fraction": 1.0},
    ]
    found = training_metrics(minibatches, num_tokens=4, num_kept=8)
    assert found.pop("policy/clip_fraction") == 0.25  # tokens with advantage 0 count as unclipped
    assert found == {"policy/loss": 2.0, "policy/grad_norm": 3.0, "mismatch/mean": 2.0, "mismatch/max": 0.75}
