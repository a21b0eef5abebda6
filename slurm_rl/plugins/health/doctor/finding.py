"""What was found, and what it is held against."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import read_json, write_json

State = Literal["ok", "wrong", "unseen"]


@dataclass(frozen=True)
class Finding:
    """A line of the table."""

    what: str
    state: State
    seen: str
    """Of what was not looked at: why not."""
    should: str = ""
    action: str = ""
    value: float | None = None
    """The number in `seen`, where more is better: of many nodes the lowest is shown."""


@dataclass(frozen=True)
class Question:
    """What every node is asked, in a folder that all of them see."""

    folder: Path
    plan: JobPlan
    gpu_mem_gb: float | None
    """Memory of one GPU, by the preset."""
    rank: int = 0
    """Of the node that answers."""

    @property
    def on_gpus(self) -> bool:
        return self.plan.accelerator != "cpu"

    def answer_file(self, rank: int) -> Path:
        return self.folder / f"node-{rank}.json"


def save_question(question: Question) -> None:
    write_json(question.folder / "asked.json", {"plan": question.plan.to_json(), "gpu_mem_gb": question.gpu_mem_gb})


def load_question(folder: Path, rank: int) -> Question:
    tree = read_json(folder / "asked.json")
    return Question(folder, JobPlan.from_json(tree["plan"]), tree["gpu_mem_gb"], rank)


def save_answer(question: Question, host: str, findings: list[Finding]) -> None:
    write_json(
        question.answer_file(question.rank), {"host": host, "findings": [asdict(finding) for finding in findings]}
    )


def load_answer(question: Question, rank: int) -> tuple[str, list[Finding]] | None:
    """The node's own name, and what it found; None when it wrote no answer."""
    if not question.answer_file(rank).is_file():
        return None
    tree: dict[str, Any] = read_json(question.answer_file(rank))
    return tree["host"], [Finding(**finding) for finding in tree["findings"]]


def no_gpu(what: str) -> Finding:
    return Finding(what, "unseen", "no GPU to look at: cluster.accelerator is cpu")
