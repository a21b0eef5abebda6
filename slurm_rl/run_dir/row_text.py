"""One line of text for a row of metrics.jsonl."""

import time
from collections.abc import Mapping

from slurm_rl.run_dir.eval_sets import describe_result, read_results

WATCHED: dict[str, str] = {
    "reward/mean": "reward {:.3f}",
    "accuracy/greedy": "accuracy {:.1%}",
    "accuracy/sampled": "sampled {:.1%}",
    "eval/loss": "held-out loss {:.3f}",
    "eval/exact_match": "exact match {:.1%}",
    "eval/accuracy": "pairs right {:.1%}",
    "time/tokens_per_s": "{:,.0f} tokens/s",
}


def render_row(step: int, stage: str, numbers: Mapping[str, float], stamp: float) -> str:
    """A line of a log: when, which step, and the numbers worth watching.

    >>> render_row(7, "grpo", {"reward/mean": 0.5, "time/step_s": 1.25}, 0.0)[20:]
    'grpo step 7: reward 0.500, 1.2 s'
    """
    told = [text.format(numbers[key]) for key, text in WATCHED.items() if key in numbers]
    row = {"step": step, **numbers}
    told += [f"set {name} {describe_result(result)}" for name, [result] in read_results([row]).items()]
    told += [f"{numbers['time/step_s']:.1f} s"] if "time/step_s" in numbers else []
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp))
    return f"{clock} {stage} step {step}" + (f": {', '.join(told)}" if told else "")
