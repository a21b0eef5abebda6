"""xpk's parser accepts the output of `export xpk`, and MaxText has every key, module and folder that we name.

Heavy parts of the releases are never imported.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.external_argv import RunValues, build_external_argv
from slurm_rl.plugins.export.xpk import XpkTarget, build_watching_argv, build_xpk_argv
from tests.train.external.releases import list_keys, unpack

PARSER = Path(__file__).parent / "parse_xpk.py"
TARGET = XpkTarget("tpus", "v5p-128", "gcr.io/p/maxtext:1", "p", num_slices=2, priority="high")
WORDS = ("+cluster=nvidia_h100", "checkpoint.upload_url='gs://b/r'")
EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "exp").glob("maxtext_*.yaml"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("google")


def parse_xpk(root: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    assert argv[0] == "xpk"
    command = [sys.executable, str(PARSER), str(unpack(root, "xpk")), *argv[1:]]
    return subprocess.run(command, capture_output=True, text=True)


def test_xpk_accepts_workload_commands(root: Path) -> None:
    config = load_config([*WORDS, "+exp=maxtext_gspo_llama3_70b", "job.max_failures=3"])
    done = parse_xpk(root, [*build_xpk_argv(config, TARGET), "--env-file=/dev/fd/63"])
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert (seen["workload"], seen["cluster"], seen["tpu_type"]) == ("maxtext-gspo-llama3-70b", "tpus", "v5p-128")
    assert (seen["num_slices"], seen["priority"], seen["max_restarts"]) == (2, "high", "3")
    assert seen["docker_image"] == "gcr.io/p/maxtext:1" and "train_rl" in seen["command"]
    for word, argv in build_watching_argv(config, TARGET).items():
        done = parse_xpk(root, argv)
        assert done.returncode == 0, done.stderr
        named = {"status": "filter_by_job", "wait": "wait_for_job_completion", "delete": "workload"}[word]
        assert json.loads(done.stdout)[named] == "maxtext-gspo-llama3-70b"


def test_xpk_refuses_unknown_tpu(root: Path) -> None:
    target = XpkTarget("tpus", "v99-1", "image", None)
    done = parse_xpk(root, build_xpk_argv(load_config([*WORDS, "+exp=maxtext_grpo_llama3_70b"]), target))
    assert done.returncode == 2 and "invalid choice: 'v99-1'" in done.stderr


def maxtext_keys(package: Path, file: str) -> set[str]:
    base = yaml.safe_load((package / "configs/base.yml").read_text())
    overlay = yaml.safe_load((package / "configs" / file).read_text())
    return list_keys(base) | list_keys(overlay)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_maxtext_has_named_modules_files_and_keys(name: str, root: Path) -> None:
    package = unpack(root, "maxtext") / "maxtext"
    config = load_config(["+cluster=slurm_cpu", "cluster.num_nodes=1", f"exp={name}"]).external
    assert config is not None
    run = RunValues(nodes=1, gpus_per_node=0, checkpoints="gs://b/c", export="gs://b/e")
    _, _, module, file, *words = build_external_argv(config, run, resume=True)
    # Their image has the checkout, including src/, in its working directory.
    assert (package.parent / Path(*module.removeprefix("src.").split("."))).with_suffix(".py").is_file()
    assert (package.parent / file.removeprefix("src/")).is_file()
    known = maxtext_keys(package, file.partition("configs/")[2])
    overlay = {"lazy_load_tensors"} if name.startswith("maxtext_convert") else set()
    assert {word.partition("=")[0] for word in words} - known - overlay == set()


def test_conversion_accepts_flag_and_model_name(root: Path) -> None:
    package = unpack(root, "maxtext") / "maxtext"
    text = (package / "checkpoint_conversion/to_maxtext.py").read_text()
    # As key=value, which their parser converts to a flag.
    (prefixes,) = re.findall(r"for cli_prefix in \((.*?)\)", text, re.DOTALL)
    assert '"lazy_load_tensors="' in prefixes and '"--lazy_load_tensors"' in text
    assert '"llama3.1-70b-Instruct": "meta-llama/' in (package / "utils/globals.py").read_text()
    # The token comes from HF_TOKEN, not from a command line.
    assert 'os.environ.get("HF_TOKEN")' in (package / "configs/pyconfig.py").read_text()


def test_checkpoint_path_matches_source(root: Path) -> None:
    """Tunix saves to <base_output_directory>/<run_name>/checkpoints/actor/<step>; see plan/checkpoint_layouts.py."""
    text = (unpack(root, "maxtext") / "maxtext/configs/types.py").read_text()
    assert 'self.checkpoint_dir = os.path.join(output_dir, "checkpoints", "")' in text
    trainer = (unpack(root, "maxtext") / "maxtext/trainers/post_train/rl/train_rl.py").read_text()
    assert "checkpoint_root_directory=checkpoint_dir" in trainer
    cluster = (unpack(root, "tunix") / "tunix/rl/rl_cluster.py").read_text()
    assert re.search(r'actor_config\.checkpoint_root_directory, "actor"', cluster)


def test_conversion_is_one_rank_without_ray() -> None:
    words = ["+cluster=slurm_cpu", "cluster.num_nodes=1", "+exp=maxtext_convert_llama3_70b"]
    plan = build_plan(load_config(words), "/r", SubmitFacts("python", 8, "test"))
    assert plan.torchrun is not None and plan.torchrun.ranks_per_node == 1 and not plan.actors
    assert plan.external is not None and "lazy_load_tensors=True" in shlex.join(plan.external.first)
    assert plan.expected["torch"] == "" and "ray" not in plan.expected
