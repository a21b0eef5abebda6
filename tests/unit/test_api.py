"""Whole runs by the API: tests/whole_run.py, tests/slurm."""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import slurm_rl
from slurm_rl.cli.find import find_run
from slurm_rl.launch.controller.record import record_job
from slurm_rl.run_dir.jsonl import append_row
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests.whole_run import read_examples

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "ray", "vllm", "pydantic", "hydra", "omegaconf", "yaml", "submitit", "rich", "pandas"}


def modules_after(script: str) -> set[str]:
    """Return the modules that the script imports."""
    counted = f"import sys; before = set(sys.modules)\n{script}\nprint(*sorted(set(sys.modules) - before))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", counted], env=env, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_no_dependency() -> None:
    found = modules_after("import importlib, typing, __future__; before = set(sys.modules); import slurm_rl")
    assert found == {"slurm_rl"}


@pytest.mark.parametrize(
    ("script", "allowed"),
    [
        ("import slurm_rl; slurm_rl.SlurmRLError", set()),
        ("import slurm_rl; slurm_rl.load_config(['+exp=demo'])", {"pydantic", "hydra", "omegaconf", "yaml"}),
        (
            "import slurm_rl; slurm_rl.Run; slurm_rl.submit; slurm_rl.plan_run",
            {"pydantic", "hydra", "omegaconf", "yaml"},
        ),
        ("from slurm_rl import rewards; rewards.score_arithmetic, rewards.score_code", {"pydantic"}),
    ],
)
def test_used_name_loads_only_its_needs(script: str, allowed: set[str]) -> None:
    assert modules_after(script) & HEAVY <= allowed


def test_public_names_exist_with_docstrings() -> None:
    for name in slurm_rl.__all__:
        assert getattr(slurm_rl, name).__doc__, name
    for name in slurm_rl.rewards.__all__:
        assert getattr(slurm_rl.rewards, name).__doc__, name
    assert set(slurm_rl.__all__) <= set(dir(slurm_rl))
    assert not hasattr(slurm_rl, "sumbit") and not hasattr(slurm_rl.rewards, "score")
    assert (Path(slurm_rl.__file__).parent / "py.typed").is_file()


def test_values_are_not_interpreted(tmp_path: Path) -> None:
    odd = tmp_path / "it's a=b, {x}: [y] \\"
    config = slurm_rl.load_config(
        ["+exp=demo"],
        {
            "data.train": odd,
            "optim.lr": np.float64(1e-4),
            "trainer.num_steps": 3,
            "cluster": "slurm_cpu",
            "cluster.env": {"A": "1 'x'"},
            "cluster.setup": ("module load x", "a: b"),
        },
    )
    assert (config.data.train, config.optim.lr, config.trainer.num_steps) == (str(odd), 1e-4, 3)
    assert (config.cluster.launcher, config.cluster.env["A"]) == ("slurm", "1 'x'")
    assert list(config.cluster.setup) == ["module load x", "a: b"]
    words = ["+exp=demo", "optim.lr=1e-4", "+cluster=slurm_cpu"]
    assert slurm_rl.load_config(words) == slurm_rl.load_config(words[:1], {"optim.lr": 1e-4, "cluster": "slurm_cpu"})


@pytest.mark.parametrize(
    ("overrides", "values", "said"),
    [
        (["+exp=demo"], {"optim.lrr": 1}, ("the key must exist", "optim.lrr", "did you mean optim.lr?")),
        (["+exp=demo", "optim.lr=fast"], {}, ("optim.lr", "fast", "")),
        ([], {}, ("must be given model.path", "none of them", "+exp=demo")),
        ("+exp=demo", {}, ("a list of strings", "'+exp=demo'", "write [")),
        (["+exp=demo", 3], {}, ("a list of strings", "3", "write [")),
        (["+exp=demo"], {"optim.lr": object()}, ("optim.lr must be text", "object", "convert it")),
        (["+exp=demo", "nonsense"], {}, ("must parse", "nonsense", "quote")),
    ],
)
def test_bad_input_is_raised_with_rule_value_and_next_action(
    overrides: list[str], values: dict[str, object], said: tuple[str, str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(slurm_rl.ConfigError) as caught:
        slurm_rl.load_config(overrides, values)
    error = caught.value
    assert said[0] in error.rule
    assert said[1] in str(error)
    assert said[2] in (error.action or str(error))
    assert "".join(capfd.readouterr()) == ""


def test_plan_equals_command_and_refuses_like_submit(tmp_path: Path) -> None:
    config = slurm_rl.load_config(["+exp=demo", "+cluster=nvidia_h100"], {"run_dir": tmp_path / "run"})
    plan = slurm_rl.plan_run(config)
    assert (plan.run_dir, plan.gpus_per_node, plan.launcher) == (str(tmp_path / "run"), 8, "slurm")
    assert not (tmp_path / "run").exists()
    missing = slurm_rl.load_config(["+exp=demo"], {"data.train": tmp_path / "rows.jsonl", "run_dir": tmp_path / "run"})
    for function in (slurm_rl.plan_run, slurm_rl.submit):
        with pytest.raises(slurm_rl.errors.DataError, match=r"rows\.jsonl"):
            function(missing)
        with pytest.raises(slurm_rl.ConfigError, match="takes a config"):
            function(["+exp=demo"])  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def make_run(path: Path) -> RunDir:
    run = RunDir(path)
    write_json(run.plan, {})
    return run


def test_run_reflects_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_run(tmp_path / "runs" / "a")
    monkeypatch.chdir(tmp_path)
    run = slurm_rl.Run("runs/a")
    monkeypatch.chdir("/")
    assert (run.path, run.job_id, str(run.state), run.metrics()) == (directory.path, None, "not submitted", [])
    record_job(directory, "manual", "7", host="elsewhere")
    append_row(directory.metrics, {"step": 1, "stage": "grpo", "reward/mean": 0.5})
    append_row(directory.metrics, {"step": 1, "stage": "eval", "accuracy/sampled": 0.25})
    assert (run.job_id, run.state.word) == ("7", "unknown")
    assert [row["stage"] for row in run.metrics()] == ["grpo", "eval"]
    write_json(directory.end, {"state": "failed", "exit_code": 1, "cause": "no rows", "step": 1})
    assert str(run.wait()) == "failed: no rows"
    assert run.cancel() is False
    assert slurm_rl.Run(find_run([str(run.path)]).path).state == run.state


def test_unknown_run_suggests_candidates(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    with pytest.raises(slurm_rl.errors.RunDirError, match=r"did you mean .*first\?"):
        slurm_rl.Run(tmp_path / "frist")
    with pytest.raises(slurm_rl.ConfigError, match="must not be empty"):
        slurm_rl.Run("")


def test_wait_times_out_with_last_state(tmp_path: Path) -> None:
    directory = make_run(tmp_path)
    record_job(directory, "manual", "7", host="elsewhere")
    with pytest.raises(slurm_rl.WaitError) as caught:
        slurm_rl.Run(tmp_path).wait(timeout_s=0)
    assert "unknown: its controller is a process of elsewhere" in str(caught.value)
    assert f"cancel {tmp_path}" in str(caught.value)


def test_api_works_in_thread_and_event_loop(tmp_path: Path) -> None:
    directory = make_run(tmp_path)
    write_json(directory.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 1})
    found: list[str] = []

    def use() -> None:
        slurm_rl.plan_run(slurm_rl.load_config(["+exp=demo"]))
        found.append(slurm_rl.Run(tmp_path).wait().word)

    async def cell() -> None:
        use()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    asyncio.run(cell())
    assert found == ["finished", "finished"]


def test_hydra_application_keeps_its_hydra(tmp_path: Path) -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    (tmp_path / "config.yaml").write_text("a: 1")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        slurm_rl.load_config(["+exp=demo"])
        assert GlobalHydra.instance().hydra is before


def test_page_statements_hold() -> None:
    """Its short examples print the shown output; the long one is the run of tests/whole_run.py."""
    _, *short = read_examples("python-api.md")
    assert len(short) == 2
    for code in short:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "python-api.md", "exec"), {})
        said = [line.rpartition("# ")[2] for line in code.splitlines() if "# " in line]
        assert out.getvalue().splitlines() == said


def test_page_names_public_names() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text()
    public = [name for name in slurm_rl.__all__ if name not in ("RunConfig", "RunState")]
    public += [f"run.{name}" for name in vars(slurm_rl.Run) if not name.startswith("_")]
    public += [f"rewards.{name}" for name in slurm_rl.rewards.__all__]
    assert [name for name in public if f"`{name}" not in page and f" `{name}`" not in page] == []
