"""docs/reference/metrics.md names exactly the keys that rows of metrics.jsonl may have.

The keys are collected from the code that makes rows: literals `area/name`, timer phases, and the losses of the
supervised tasks.
"""

import ast
import json
import re
import subprocess
from pathlib import Path

from slurm_rl.plugins.report.charts import LINE_CHARTS
from slurm_rl.trainers.common.metrics_log import STAMP
from tests.docs.markdown import read_blocks
from tests.docs.metrics_page import PAGE, read_page_keys
from tests.lock import ROOT

FOLDERS = [ROOT / "slurm_rl" / name for name in ("algorithms", "rollout", "trainers", "workers")]
_KEY = re.compile(r"[a-z]+/[a-z_]*[a-z]")
# Event kinds have the same form.
_EVENTS = {"append_event", "event", "report", "say"}


def find_keys() -> set[str]:
    """Return every key of a training row."""
    found = {STAMP}
    for file in (file for folder in FOLDERS for file in folder.rglob("*.py") if "endpoint" not in file.parts):
        tree = ast.parse(file.read_text())
        _drop_docstrings_and_events(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEY.fullmatch(node.value):
                found.add(node.value)
            if isinstance(node, ast.JoinedStr):
                found |= _families(node)
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "phase":
                found |= {f"time/{arg.value}_s" for arg in node.args if isinstance(arg, ast.Constant)}
    for task in ("sft", "rm", "dpo"):
        losses = _returned(ROOT / f"slurm_rl/trainers/supervised/{task}.py")
        found |= {f"{task}/{name}" for name in losses["train"]} | {f"eval/{name}" for name in losses["eval"]}
    return found


def _families(node: ast.JoinedStr) -> set[str]:
    """Return families, `score/<name>` for f"score/{name}"; skip those collected elsewhere."""
    start = node.values[0]
    if not isinstance(start, ast.Constant) or not re.fullmatch(r"[a-z]+/[a-z_@]*", str(start.value)):
        return set()
    known = {"time/": set[str](), "eval/": {"eval/loss"}, "policy/": {"policy/loss", "policy/grad_norm"}}
    known["accuracy/"] = {"accuracy/sampled", "accuracy/greedy"}
    # tests/examples/test_mixture.py checks that the rows of a run have no others.
    of_source = ("reward", "prompts", "groups_with_signal", "failed", "length_mean", "truncated", "sampled", "greedy")
    known["source/"] = {f"source/<name>/{key}" for key in of_source}
    known["agent/"] = {"agent/<name>/reward", "agent/<name>/turns"}
    means = [f"{kind}@<k>{end}" for kind in ("avg", "pass") for end in ("", "_error")]
    known["set/"] = {f"set/<name>/{key}" for key in (*means, "prompts", "failed", "length_mean", "truncated")}
    names = {"score/": "name", "reward/failed_": "cause", "tools/failed_": "cause", "accuracy/pass@": "k"}
    prefix = str(start.value)
    if prefix in known:
        return known[prefix]
    return {f"{prefix}<{names[prefix]}>"}


def _returned(file: Path) -> dict[str, set[str]]:
    """Return the keys that the losses of a task return, in training and in evaluation."""
    found: dict[str, set[str]] = {"train": set(), "eval": set()}
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    losses = [node for node in functions if node.name.endswith(("_loss", "_eval"))]
    has_eval = any(node.name.endswith("_eval") for node in losses)
    for function in losses:
        keys = {
            key.value
            for node in ast.walk(function)
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
        is_eval = function.name.endswith("_eval")
        found["eval"] |= keys if is_eval or not has_eval else set()
        found["train"] |= set() if is_eval else keys
    return found


def _drop_docstrings_and_events(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            node.args = [] if name in _EVENTS else node.args


def test_page_names_written_keys_only_and_those_of_charts() -> None:
    assert find_keys() ^ read_page_keys() == set()
    assert {curve.key for curves in LINE_CHARTS.values() for curve in curves} - read_page_keys() == set()


def test_documented_row_can_be_printed(tmp_path: Path) -> None:
    [block] = read_blocks(PAGE)
    [words] = block.commands()
    file = tmp_path / words[-1]
    file.parent.mkdir(parents=True)
    file.write_text('{"step": 1, "stage": "grpo"}\n{"step": 2, "stage": "grpo"}\n')
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["step"] == 2
