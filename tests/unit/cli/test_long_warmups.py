from pathlib import Path

import pytest

from slurm_rl.__main__ import main

ROWS = "data.num_eval=0"
PPO = "+algorithm=ppo"
CASES = {
    "grpo": ((), "trainer.num_steps=5", "optim", 5),
    "grpo-critic-warmup": ((PPO, "critic.warmup_steps=2"), "trainer.num_steps=5", "optim", 3),
    "critic": ((PPO,), "trainer.num_steps=5", "critic.optim", 5),
    "warmup": ((), "warmup.num_steps=5", "warmup.optim", 5),
    # `addition` has 10,000 rows.
    "sft": (("exp=sft_tiny", ROWS, "supervised.num_epochs=1"), "supervised.batch_size=2000", "optim", 5),
    "rm": (("exp=rm_tiny", ROWS, "supervised.num_epochs=1"), "supervised.batch_size=2000", "optim", 5),
    "dpo": (("exp=dpo_tiny", ROWS), "supervised.max_steps=5", "optim", 5),
}
"""Overrides of the run, the override that shortens it, the optimizer, and the steps of its schedule."""
OPTIMIZERS = ("optim", "critic.optim", "warmup.optim")


@pytest.mark.parametrize(("warmup", "is_long"), [(0, True), (-1, False)], ids=["as-long-as-the-run", "shorter"])
@pytest.mark.parametrize("name", CASES)
def test_plan_with_long_warmup_warns(
    name: str,
    warmup: int,
    is_long: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words, short, key, num_steps = CASES[name]
    first = () if any(word.startswith("exp=") for word in words) else ("exp=demo",)
    others = () if name in ("sft", "rm", "dpo") else [f"{it}.warmup_steps=0" for it in OPTIMIZERS if it != key]
    assert main(["plan", *first, *words, *others, short, f"{key}.warmup_steps={num_steps + warmup}"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    if not is_long:
        assert lines == []
        return
    [line] = lines
    assert line.startswith(f"warning: {key}.warmup_steps should be less than the steps of its schedule")
    assert f"got {num_steps} and " in line and f"={num_steps}. Next: lower {key}.warmup_steps" in line


def test_plan_with_warmup_of_500_in_5_steps_names_share_of_lr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "+exp=demo", "optim.warmup_steps=500", "trainer.num_steps=5"]) == 0
    assert "only rises, to 1% of optim.lr; got 500 and trainer.num_steps=5." in capsys.readouterr().err
