"""Exports to dstack and xpk: golden files, and the words that a shell parses.

To update: `python -m tests.unit.plugins.export.test_export` writes tests/golden.
"""

import io
import os
import shlex
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.export import workload_name
from slurm_rl.plugins.export.dstack import build_task, quote_for_hydra
from slurm_rl.plugins.export.xpk import XpkTarget, build_xpk_argv

GOLDEN = Path(__file__).parents[3] / "golden"
XPK = ["--cluster=tpus", "--tpu-type=v5p-128", "--project=my-project", "--image=gcr.io/my-project/maxtext:1"]
BUCKET = "checkpoint.upload_url='gs://bucket/runs'"
CASES = {
    "dstack-demo": ["dstack", "+exp=demo", "name=demo"],
    "dstack-grpo_mathv60k": [
        *("dstack", "--image=registry.example/slurm_rl:1", "+cluster=nvidia_a100", "+exp=grpo_mathv60k", BUCKET)
    ],
    "dstack-verl_ppo_gsm8k": [
        *("dstack", "--image=verl:rocm", "+cluster=amd_mi300", "+exp=verl_ppo_gsm8k", "job.time_limit=4:00:00")
    ],
    "dstack-verl_ppo_gsm8k-volumes": [
        *("dstack", "--image=verl:cuda", "+cluster=dstack", "+exp=verl_ppo_gsm8k", "run_dir=/checkpoints/verl"),
        *("--volume=/checkpoints:/checkpoints", "--volume=data:/shared", "container.mounts=[/scratch:/tmp/scratch]"),
    ],
    "xpk-maxtext_grpo_llama3_70b": ["xpk", *XPK, "+cluster=nvidia_h100", "+exp=maxtext_grpo_llama3_70b", BUCKET],
    "xpk-maxtext_gspo_llama3_70b": [
        *("xpk", *XPK, "--num-slices=2", "+cluster=nvidia_h100", "+exp=maxtext_gspo_llama3_70b", BUCKET),
        "job.max_failures=3",
    ],
}
SECRET = "key-that-nobody-may-see"


def export(words: list[str]) -> str:
    with redirect_stdout(io.StringIO()) as output:
        assert main(["plan", "--as", *words]) == 0
    return output.getvalue()


@pytest.mark.parametrize("name", CASES)
def test_export_matches_golden(name: str) -> None:
    assert export(CASES[name]) == (GOLDEN / f"export-{name}.txt").read_text()


def test_name_decides_workload_and_folder() -> None:
    """MaxText's two cases after a failure: a fresh run under a new name, and a resumed run under the same name."""
    words = CASES["xpk-maxtext_grpo_llama3_70b"]
    first, again, other = (export([*words, f"name={name}"]) for name in ("llama_a", "llama_a", "llama_b"))
    assert first == again
    assert "--workload=llama-a " in first and "run_name=llama_a " in first
    assert "--workload=llama-b " in other and "run_name=llama_b " in other and "llama-a" not in other


def test_golden_files_have_cases() -> None:
    assert {path.name for path in GOLDEN.glob("export-*")} == {f"export-{name}.txt" for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_secrets_are_referenced_by_name_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    text = export(CASES[name])
    assert SECRET not in text
    assert "WANDB_API_KEY" in text


# Special characters of YAML, shells and Hydra.
HOSTILE = st.text(st.sampled_from("ab $`\"'\\#:{}[]&|;<>*?!~=,%-\t"), min_size=1, max_size=20).filter(str.strip)


DEMO = load_config(["+exp=demo", "name=demo"])


@given(HOSTILE)
@settings(max_examples=60, deadline=None)
def test_words_reach_node_unchanged(text: str) -> None:
    assume("${{" not in text)  # refused: dstack interpolates it
    overrides = [f"data.train={text}"]
    task = build_task(DEMO, overrides, ["HF_TOKEN"], "image:1")
    again = yaml.safe_load(yaml.safe_dump(task, sort_keys=False, width=10_000, allow_unicode=True))
    argv = shlex.split(again["commands"][-1])
    assert argv[:5] == ["python", "-m", "slurm_rl", "join", overrides[0]]


@given(st.text(st.sampled_from("ab1 $'\"\\{}[],:=/ "), min_size=1, max_size=12))
@example("\\\\'")
@example("a\\")
@example("1")
@example("null")
@settings(max_examples=60, deadline=None)
def test_hydra_reads_quoted_value_unchanged(text: str) -> None:
    assert OverridesParser.create().parse_override(f"a={quote_for_hydra(text)}").value() == text


def test_node_composes_run_of_config() -> None:
    words = ["+exp=demo", "+cluster=nvidia_h100", "name=a_b", "container.runtime=podman"]
    words += ["container.image=registry.example/rl:1"]
    task = build_task(load_config(words), words, [], None)
    assert task["image"] == "registry.example/rl:1"
    overrides = shlex.split(task["commands"][-1])[4:]
    added = ["cluster.launcher=manual", "container.runtime=none", "container.image=null", "run_dir=runs/a_b"]
    assert overrides == [*words, *added]


def test_ports_and_volumes_match_verl_docs() -> None:
    """`ports: 8265`, `volumes: /checkpoints:/checkpoints`; a run without dashboard forwards no port."""
    words = ["+cluster=dstack", "+exp=verl_ppo_gsm8k"]
    task = build_task(load_config(words), words, [], "verl:1", ["/checkpoints:/checkpoints"])
    assert (task["ports"], task["volumes"]) == ([8265], ["/checkpoints:/checkpoints"])
    plain = build_task(load_config([*words, "ray.dashboard=false"]), words, [], "verl:1")
    assert not {"ports", "volumes"} & set(plain)


def test_names_are_converted_for_dstack_or_refused() -> None:
    assert [workload_name(name, "dstack") for name in ("Grpo_MathV60K", "a.b--c")] == ["grpo-mathv60k", "a-b-c"]
    for name in ("7b", "a", "a" * 60):
        with pytest.raises(ConfigError, match="set name="):
            workload_name(name, "dstack")


def write_fake_xpk(folder: Path) -> Path:
    """Write an xpk that prints its arguments and its env file; return the path for the script."""
    fake = folder / "xpk"
    fake.write_text(
        '#!/bin/bash\nfor word in "$@"; do printf "%s\\n" "$word"; last=$word; done\n'
        'echo ---\ncase $last in --env-file=*) cat "${last#--env-file=}";; esac\n'
    )
    fake.chmod(0o755)
    return folder / "run.sh"


def test_lines_of_xpk_script_are_xpk_commands(tmp_path: Path) -> None:
    script = write_fake_xpk(tmp_path)
    words = ["xpk", *XPK, "+cluster=nvidia_h100", "+exp=maxtext_grpo_llama3_70b", BUCKET]
    assert main(["plan", "--as", *words, f"--out={script}"]) == 0
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for word, line in {
        "status": "workload list --filter-by-job=maxtext-grpo-llama3-70b",
        "wait": "workload list --wait-for-job-completion=maxtext-grpo-llama3-70b",
        "delete": "workload delete --workload=maxtext-grpo-llama3-70b",
    }.items():
        done = subprocess.run([str(script), word], env=env, capture_output=True, text=True)
        assert done.stdout.split("---\n")[0].split() == [*line.split(), "--cluster=tpus", "--project=my-project"]
    wrong = subprocess.run([str(script), "stop"], env=env, capture_output=True, text=True)
    assert wrong.returncode == 2 and "status, wait or delete; got stop" in wrong.stderr


def test_xpk_script_runs_xpk_with_our_words_and_shells_secrets(tmp_path: Path) -> None:
    """bash runs it with a fake xpk that records its arguments."""
    script = write_fake_xpk(tmp_path)
    words = ["xpk", *XPK, "+cluster=nvidia_h100", "+exp=maxtext_grpo_llama3_70b", BUCKET, "+cluster.env.A='x y'"]
    assert main(["plan", "--as", *words, f"--out={script}"]) == 0
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HF_TOKEN": SECRET}
    done = subprocess.run([str(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    argv, lines = done.stdout.split("---\n")
    config = load_config([word for word in words[1:] if not word.startswith("--")])
    target = XpkTarget("tpus", "v5p-128", "gcr.io/my-project/maxtext:1", "my-project")
    assert argv.splitlines()[:-1] == build_xpk_argv(config, target)[1:]
    assert "HF_TOKEN\n" in lines and "WANDB_API_KEY" not in lines, "by name, if set in the shell"
    assert "A=x y\n" in lines and SECRET not in done.stdout
    command = argv.splitlines()[-2].removeprefix("--command=")
    assert "base_output_directory=gs://bucket/runs" in shlex.join(shlex.split(command)).replace('"', "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["xpk", *XPK, "+exp=sft_tiny"], "task=maxtext"),
        (["xpk", *XPK, "+cluster=nvidia_h100", "+exp=maxtext_grpo_llama3_70b"], "gs:// URL"),
        (["xpk", "+cluster=nvidia_h100", "+exp=maxtext_grpo_llama3_70b", BUCKET], "no --cluster, --tpu-type, --image"),
        (["dstack", "--out=a.yml"], "ends with .dstack.yml"),
        (["dstack", "--out=/proc/no/a.dstack.yml"], "--out"),
        (
            ["dstack", "+exp=demo", "+cluster=nvidia_h100", "container.runtime=pyxis", "container.image=/a.sqsh"],
            "Docker images",
        ),
        (["dstack", "+exp=demo", "+cluster=amd_mi300"], "--image"),
        (["dstack", "+exp=demo", "data.root='${{ secrets.A }}'"], "${{"),
        (["dstack", "optim.lrr=1"], "optim.lr"),
        (["dstack", "+exp=demo", "--volume=a:b"], "--volume must be"),
        (["dstack", "+exp=demo", "--volume=/a:/b:ro"], "--volume must be"),
        (["dstack", "+exp=demo", "--volume=/a:/b", "--volume=c:/b"], "one volume; got /b"),
        (["dstack", "+exp=demo", "container.mounts=[/a:/b:ro]"], "leave out :ro"),
        (["xpk", *XPK, "--volume=/a:/b", "+cluster=nvidia_h100", "+exp=maxtext_grpo_llama3_70b", BUCKET], "--volume"),
    ],
)
def test_unsupported_features_of_other_system_are_bad_input(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--as", *words]) == 2
    assert said in capsys.readouterr().err


if __name__ == "__main__":
    for case, case_words in CASES.items():
        (GOLDEN / f"export-{case}.txt").write_text(export(case_words))
