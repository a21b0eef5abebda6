from __future__ import annotations

from pathlib import Path

from slurm_rl.cli.plan import fold_reasons
from slurm_rl.config.load import load_config
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.render import render_plan


def test_reasons_end_with_the_terminal_and_what_is_copied_stays_whole(tmp_path: Path) -> None:
    config = load_config(["+exp=demo", "+cluster=slurm_cpu"])
    text = render_plan(build_plan(config, str(tmp_path / "run"), SubmitFacts("/python", 4, "1")))
    environment, sent = text.split("\n\n")[2], "\n\n".join(text.split("\n\n")[3:])
    assert environment.startswith("environment\n") and max(map(len, environment.splitlines())) > 80
    folded = fold_reasons(text, 80)
    assert max(map(len, folded.split("\n\n")[2].splitlines())) <= 80
    assert folded.endswith(sent)
    words = [word for word in folded.split() if word != "#"]
    assert words == [word for word in text.split() if word != "#"]
    assert fold_reasons(text, None) == text
