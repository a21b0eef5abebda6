import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from slurm_rl.__main__ import main
from slurm_rl.cli import convert
from slurm_rl.cli import eval as verb
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import CheckpointError, ConfigError
from slurm_rl.launch.runs.find import remember
from slurm_rl.launch.runs.start import start_run
from slurm_rl.plan.placement import place_actors
from slurm_rl.run_dir.run_dir import RunDir

WORDS = ["+exp=demo", "+eval.sets.sums.data=addition", "data.train=''"]


class Submitted(list[RunConfig]):
    """Submitted evaluation configs, and the callback that writes the model."""

    write_model: Any = None

    def start_run(self, config: RunConfig, tell: object, write_model: Any = None) -> None:
        self.append(config)
        self.write_model = write_model


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    found = Submitted()
    monkeypatch.setattr(verb, "start_run", found.start_run)
    monkeypatch.setattr(verb, "announce_and_follow", lambda started, **_: 0)
    return found


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Path]]:
    """Return (step, folder) of each converted checkpoint."""
    found: list[tuple[int, Path]] = []

    def prepare(run: RunDir, checkpoint: Any) -> Callable[..., object]:
        return lambda folder: found.append((checkpoint.step, folder))

    monkeypatch.setattr(convert, "find_checkpoint", lambda folder, step: SimpleNamespace(step=step or 20))
    monkeypatch.setattr(convert, "prepare", prepare)
    return found


def make_run(folder: Path, *words: str, exported: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    config = load_config(words or ["+exp=sft_tiny"])
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    if exported:
        (folder / "export").mkdir()
        (folder / "export/config.json").write_text("{}")
    return folder


def test_eval_converts_checkpoint_into_its_own_run_directory(
    submitted: Submitted, converted: list[tuple[int, Path]], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "grpo", exported=True)
    assert main(["eval", *WORDS, f"model.path={run}", "--step", "20"]) == 0
    # Checks use the run's initial model; conversion waits until they pass.
    assert submitted[0].model.path == f"{run}/model" and converted == [] and submitted.write_model is not None
    submitted.write_model(tmp_path / "eval/model")
    assert converted == [(20, tmp_path / "eval/model")]
    assert not list(run.glob("export-step-*"))


def test_eval_checks_before_conversion_and_leaves_nothing_if_refused(
    converted: list[tuple[int, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "grpo", "+exp=demo")
    (run / "model").mkdir()
    sizes = dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 2) | {"hidden_size": 64, "vocab_size": 14}
    shape = {**sizes, "intermediate_size": 128, "max_position_embeddings": 64, "model_type": "qwen3"}
    (run / "model/config.json").write_text(json.dumps(shape))
    words = ["rollout.max_tokens=1024", "+eval.sets.a.data=addition", f"run_dir={tmp_path}/eval"]
    assert main(["eval", str(run), *words]) == 2
    assert "max_position_embeddings" in capsys.readouterr().err
    assert converted == [] and not (tmp_path / "eval").exists()


TRAINED = ("+exp=demo", "data.max_prompt_tokens=20", "rollout.max_tokens=9", "rollout.temperature=0.5")
SET = "+eval.sets.mine.data=addition"


def test_eval_of_run_inherits_its_settings(
    submitted: Submitted, converted: list[tuple[int, Path]], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "grpo", *TRAINED, "rollout.num_engines=1", "+eval.sets.own.data=addition")
    assert main(["eval", str(run), "--step", "80"]) == 0
    [config] = submitted
    assert (config.data.max_prompt_tokens, config.rollout.max_tokens, config.rollout.temperature) == (20, 9, 0.5)
    assert config.reward == load_config(TRAINED).reward and list(config.eval.sets) == ["own"]
    assert config.data.train == "" and config.rollout.num_engines is None and config.warmup.num_steps == 0
    assert config.eval.only and config.name == "addition-step-80-eval" and config.model.from_config is None


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["rollout.max_tokens=3"], "rollout.max_tokens", 3),
        (["+reward=math"], "reward.verifiers", {"math": 1.0}),
        (["+reward.verifiers.math=1"], "reward.verifiers", {"math": 1.0}),
        (["name=mine"], "name", "mine"),
    ],
)
def test_eval_overrides_win_over_run(
    words: list[str], key: str, value: object, submitted: Submitted, converted: object, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "grpo", *TRAINED)
    assert main(["eval", str(run), SET, *words]) == 0
    assert functools.reduce(getattr, key.split("."), submitted[0]) == value


def test_eval_finds_run_by_name_job_or_path(
    submitted: Submitted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "shared/sort-1", *TRAINED, exported=True)
    remember(run, ["7"])
    assert main(["eval", "sort-1", SET]) == 0 and main(["eval", "7", SET]) == 0
    assert main(["eval", *WORDS, "model=hf", f"model.path={run}"]) == 0
    assert [one.model.path for one in submitted] == [f"{run}/export"] * 3
    assert main(["eval", *WORDS]) == 0
    assert submitted[3].eval.only and list(submitted[3].eval.sets) == ["sums"]
    assert main(["eval", *WORDS, "--step", "20"]) == 2
    assert "--step needs a run" in capsys.readouterr().err and len(submitted) == 4


def test_start_run_removes_run_with_unwritable_model(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        folder.mkdir()
        raise CheckpointError("broken")

    config = load_config(["+exp=demo", f"run_dir={tmp_path}/eval"])
    with pytest.raises(CheckpointError):
        start_run(config, lambda line: None, fail)
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+exp=demo"], r"must be given eval\.sets"),
        (["+exp=demo", "~reward.verifiers", "+eval.sets.sums.data=addition"], "must be given a reward"),
    ],
)
def test_evaluation_needs_sets_and_judge(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([*words, "eval.only=true"])


def test_engines_use_all_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "eval.only=true", "+cluster=nvidia_h100", "cluster.num_nodes=2", "cluster.gpus_per_node=4"]
    places = place_actors(load_config(words), None, 2)
    assert [(actor.role, actor.node, actor.gpus) for actor in places] == [
        ("rollout", node, gpus) for node in (0, 1) for gpus in ((0, 1), (2, 3))
    ]
    words = ["plan", *WORDS, "eval.only=true", "+cluster=slurm_cpu", "--json"]
    assert main(words) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {actor["role"] for actor in plan["actors"]} == {"rollout"}
    assert main(["plan", *WORDS, "eval.only=true", "+cluster=nvidia_h100"]) == 0
    said = capsys.readouterr().out
    assert "evaluation only" in said and "sums: addition, all rows" in said and "policy" not in said.split("files")[0]
