"""GPUs of this machine without a preset. The drivers' programs are stand-ins that print recorded output."""

import json
import os
import re
from pathlib import Path

import pytest

from slurm_rl.config import detect_gpus
from slurm_rl.config.load import load_config
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.start import choose_directory, plan_in
from slurm_rl.plan.explain import render_explanation
from slurm_rl.plugins.health import command, detect
from tests.lock import ROOT

SAMPLES = ROOT / "tests/samples"
H100 = (SAMPLES / "nvidia-smi-q.h100-healthy.txt").read_text()
HEAD, BODY = re.split(r"(?=^GPU 0)", H100, maxsplit=1, flags=re.MULTILINE)
QWEN = {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_hidden_layers": 28}
QWEN |= {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768, "model_type": "qwen2"}
# No recorded output of this command: the form of AMD's documentation.
AMD_SMI = '[{"gpu": %d, "asic": {"market_name": "MI300X"}, "vram": {"size": {"value": 196592, "unit": "MB"}}}]'


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on PATH for stand-ins; this Python counts as one with builds for GPUs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(detect_gpus, "TOOLS", ("nvidia-smi", "rocm-smi", "amd-smi"))
    monkeypatch.setattr(detect_gpus, "is_cpu_build", lambda: False)
    monkeypatch.setattr(detect, "_known", {})
    return folder


def install(folder: Path, name: str, output: str, status: int = 0) -> None:
    (folder / f"{name}.out").write_text(output)
    (folder / name).write_text(f'#!/bin/sh\ncat "{folder}/{name}.out"\nexit {status}\n')
    (folder / name).chmod(0o755)


def cluster_of(*words: str) -> tuple[object, ...]:
    cluster = load_config(["+exp=demo", *words]).cluster
    return cluster.accelerator, cluster.gpus_per_node, cluster.gpu_mem_gb, cluster.detected


def test_local_run_uses_gpus_of_machine(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tools, "nvidia-smi", HEAD + 8 * BODY)
    source = "nvidia-smi on this machine: 8 x NVIDIA H100 80GB HBM3 of 85 GB"
    assert cluster_of() == ("nvidia", 8, 85.0, source)
    config = load_config(["+exp=demo"])
    assert config.rollout.colocate is None
    assert config.model.dtype == "bfloat16"
    monkeypatch.setenv("PATH", "/usr/bin")
    # The saved config keeps the values where there is no GPU.
    assert parse_config(config.model_dump(mode="json")).cluster == config.cluster


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, ("nvidia", 1)),
        ({"CUDA_VISIBLE_DEVICES": "1,2,-1,4"}, ("nvidia", 2)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-566e6f65"}, ("nvidia", 8)),  # the eight copies have one UUID
        ({"CUDA_VISIBLE_DEVICES": ""}, ("cpu", 0)),
        ({"ROCR_VISIBLE_DEVICES": "0"}, ("nvidia", 8)),
    ],
)
def test_masks_limit_detected_gpus(
    tools: Path, monkeypatch: pytest.MonkeyPatch, masks: dict[str, str], expected: tuple[str, int]
) -> None:
    install(tools, "nvidia-smi", HEAD + 8 * BODY)
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    assert cluster_of()[:2] == expected


def test_amd_gpus_are_detected_by_both_programs(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tools, "rocm-smi", (SAMPLES / "rocm-smi.mi300x.json").read_text())
    assert cluster_of()[:3] == ("amd", 1, 205.0)
    (tools / "rocm-smi").unlink()
    detect._known.clear()
    install(tools, "amd-smi", AMD_SMI % 0)
    assert cluster_of() == ("amd", 1, 206.0, "amd-smi on this machine: 1 x MI300X of 206 GB")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    assert cluster_of()[:2] == ("cpu", 0)
    assert len(detect.parse_amd_smi('WARNING: x\n{"gpu_data": ' + AMD_SMI % 1 + "}")) == 1
    assert detect.parse_amd_smi("no JSON") == []
    sample = (SAMPLES / "amd-smi-metric.mi300x-rocm7.0.json").read_text()
    assert [gpu.memory_bytes for gpu in detect.parse_amd_smi(sample)] == [None]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cluster.accelerator=cpu"], ("cpu", 0, None, None)),
        (["cluster.gpus_per_node=0"], ("cpu", 0, None, None)),
        (["+cluster=slurm_cpu"], ("cpu", 0, None, None)),
        (["+cluster=nvidia_a100"], ("nvidia", 8, 80.0, None)),
    ],
)
def test_explicit_values_and_presets_win(tools: Path, words: list[str], expected: tuple[object, ...]) -> None:
    install(tools, "nvidia-smi", "must not run", status=9)
    assert cluster_of(*words) == expected


def test_explicit_number_keeps_detected_kind_and_memory(tools: Path) -> None:
    install(tools, "nvidia-smi", HEAD + 8 * BODY)
    assert cluster_of("cluster.gpus_per_node=2", "cluster.gpu_mem_gb=40")[:3] == ("nvidia", 2, 40.0)
    assert cluster_of("cluster.accelerator=nvidia")[:3] == ("nvidia", 8, 85.0)
    with pytest.raises(ConfigError, match="above 0 elsewhere; got 0 on 'amd'"):
        cluster_of("cluster.accelerator=amd")


def test_unusable_gpus_leave_cpu_and_a_reason(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason() -> str:
        detect._known.clear()
        accelerator, count, _, detected = cluster_of()
        assert (accelerator, count) == ("cpu", 0)
        return str(detected)

    install(tools, "nvidia-smi", (SAMPLES / "nvidia-smi-missing-gpu.txt").read_text(), status=2)
    assert "nvidia-smi on this machine failed: Unable to determine the device handle" in reason()
    install(tools, "nvidia-smi", "No devices were found")
    assert "lists no GPU" in reason()
    install(tools, "nvidia-smi", HEAD + re.sub(r"(MIG Mode\n\s+Current\s+: )Disabled", r"\1Enabled", BODY))
    assert "MIG splits them" in reason()
    install(tools, "nvidia-smi", H100)
    monkeypatch.setattr(detect_gpus, "is_cpu_build", lambda: True)
    assert "not used: torch and vLLM of this Python are built for CPU" in reason()
    assert cluster_of("cluster.python=/shared/venv/bin/python")[:2] == ("nvidia", 1)
    (tools / "nvidia-smi").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(detect, "_ANSWER_S", 0.1)
    assert "timed out" in reason()


def plan_on_one_gpu(tmp_path: Path, *words: str) -> tuple[RunConfig, str]:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    config = load_config(["model=hf", f"model.path={tmp_path}", "+reward=math", "data.train=x.jsonl", *words])
    plan = plan_in(config, choose_directory(config))
    assert plan.layout.gpu_memory_utilization is not None
    return plan.layout.fill_in(config), render_explanation(config, plan, None)


def test_one_gpu_is_shared_by_policy_and_engine(tools: Path, tmp_path: Path) -> None:
    install(tools, "nvidia-smi", H100)
    config, text = plan_on_one_gpu(tmp_path)
    assert config.rollout.colocate is True
    assert config.rollout.gpu_memory_utilization == 0.66
    assert "detected    nvidia-smi on this machine: 1 x NVIDIA H100 80GB HBM3 of 85 GB" in text
    assert "1 policy worker: it shares the only GPU with the engine, in turn" in text
    chosen = plan_on_one_gpu(tmp_path, "rollout.gpu_memory_utilization=0.3")[0].rollout.gpu_memory_utilization
    assert chosen == 0.3


def test_one_small_gpu_is_refused_once_with_both_numbers(tools: Path, tmp_path: Path) -> None:
    install(tools, "nvidia-smi", H100)
    with pytest.raises(ConfigError, match=r"GB > .* GB in phase .*Next: (?!.*gpu_memory_utilization)"):
        plan_on_one_gpu(tmp_path, "cluster.gpu_mem_gb=16")


def test_engines_with_own_gpus_keep_their_share(tmp_path: Path) -> None:
    words = ["+cluster=nvidia_h100", "rollout.colocate=false"]
    assert plan_on_one_gpu(tmp_path, *words)[0].rollout.gpu_memory_utilization == 0.85
    shared = plan_on_one_gpu(tmp_path, "+cluster=nvidia_h100", "rollout.colocate=true", "cluster.gpu_mem_gb=null")
    assert shared[0].rollout.gpu_memory_utilization == 0.6


def test_doctor_checks_gpus_that_this_python_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_accelerator", lambda: ("nvidia", 2))
    config = load_config(["+exp=demo"])
    plan = command.detect_gpus(config, plan_in(config, choose_directory(config)))
    assert (plan.accelerator, plan.gpus_per_node, "vllm" in plan.expected) == ("nvidia", 2, True)
    config = load_config(["+exp=demo", "+cluster=slurm_cpu"])
    assert command.detect_gpus(config, plan_in(config, choose_directory(config))).accelerator == "cpu"
