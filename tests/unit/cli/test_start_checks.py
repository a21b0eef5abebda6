import contextlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.reward import RewardConfig, RewardModelConfig
from slurm_rl.data.prompts import PromptRow
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.interpreter import check_interpreter, find_activated
from slurm_rl.launch.runs.model_checks import (
    check_lora_targets,
    check_reward_model,
    check_same_model,
    check_weight_files,
    read_linear_names,
)
from slurm_rl.launch.runs.tensor_headers import read_shapes
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.parse_shape import parse_shape
from slurm_rl.rewards.check_references import check_references
from tests.image_kit import write_image
from tests.plans import plan_of as make_plan
from tests.tiny_models import TinyModel

QWEN25_7B = {
    "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064,
    "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip


def write_header(path: Path, shapes: dict[str, list[int]]) -> None:
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def test_adapter_parameters_of_mixture_include_experts_if_wanted() -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10}
    dense = parse_shape({**config, "intermediate_size": 128})
    mixture = parse_shape({**config, "intermediate_size": 128, "num_experts": 8})
    assert dense is not None and mixture is not None
    assert dense.adapter_parameters(4) - mixture.adapter_parameters(4) == 2 * 4 * 3 * (64 + 128)
    # Per expert, A and B of gates and ups, [4, 64] and [256, 4], and of downs, [4, 128] and [64, 4].
    both = mixture.adapter_parameters(4, on_experts=True) - mixture.adapter_parameters(4)
    assert both == 2 * 8 * 4 * (64 + 256 + 128 + 64)


LLAMA3_70B = {
    "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672, "vocab_size": 128256,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


SHAPES = {"model.embed_tokens.weight": [9, 4], "model.layers.0.mlp.up_proj.weight": [8, 4]}


def write_weights(folder: Path, shapes: dict[str, list[int]]) -> str:
    folder.mkdir()
    write_header(folder / "model.safetensors", shapes)
    return str(folder)


def test_check_same_model_compares_shapes(tmp_path: Path) -> None:
    model = ModelConfig(path=write_weights(tmp_path / "model", SHAPES))
    scored = write_weights(tmp_path / "scored", SHAPES | {"score.weight": [1, 4]})
    for same_or_remote in (model.path, scored, "org/name", None):
        check_same_model("model.init_from", same_or_remote, model)
    other = write_weights(tmp_path / "other", SHAPES | {"model.layers.0.mlp.up_proj.weight": [6, 4]})
    with pytest.raises(ConfigError, match=r"model.init_from.*\[8, 4\].*up_proj\.weight \[6, 4\]"):
        check_same_model("model.init_from", other, model)
    tiny = ModelConfig(from_config=str(TinyModel(characters="abcd", hidden_size=8).write(tmp_path / "source")))
    with pytest.raises(ConfigError, match=r"\[6, 8\].*embed_tokens\.weight \[9, 4\]"):
        check_same_model("critic.init_from", other, tiny)


@pytest.mark.parametrize(
    ("tree", "words", "numbers"),
    [
        (QWEN25_7B, ["rollout.tensor_parallel_size=8"], ["28 heads", "8 GPUs"]),
        (LLAMA3_70B, ["cluster.num_nodes=1"], ["GB >", "78.0 GB"]),
    ],
)
def test_weight_errors_exit_with_2(
    tree: dict[str, object], words: list[str], numbers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tree))
    common = ["+exp=demo", "+cluster=nvidia_h100", "model=hf", f"model.path={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    assert main(["plan", *common, *words]) == 2
    said = capsys.readouterr().err
    assert all(number in said for number in numbers), said


def test_start_checks_include_weights_adapters_and_reward_model(tmp_path: Path) -> None:
    folder = Path(write_weights(tmp_path / "model", BLOCKS))
    (tmp_path / "config").mkdir()
    for place in (folder, tmp_path / "config"):
        (place / "config.json").write_text(json.dumps(QWEN25_7B))
    for name, tree in (
        ("seeing", {"vision_config": {}, "model_type": "llava"}),
        ("wide", {"model_type": "cohere2_moe"}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(tree))
    other = write_weights(tmp_path / "other", SHAPES)
    reward = write_reward_model(tmp_path, {"num_labels": 3})
    for words, says in (
        (["model=hf", f"model.path={tmp_path}/config", f"model.init_from={other}"], r"\[152064, 3584\].*\[9, 4\]"),
        (["model=hf", f"model.path={folder}", "+lora=attention"], "got k_proj, o_proj, .*choose from up, wqkv"),
        ([f"reward.model.path={reward}"], "one output; got 3"),
        (["model=hf", f"model.path={tmp_path}/seeing"], "positions are known: .*got llava"),
        (
            ["model=hf", f"model.path={tmp_path}/wide"],
            "vLLM and the policy agree: .*window.*got cohere2_moe in float32",
        ),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            check_inputs(load_config(["+exp=demo", *words]), print)
        assert caught.value.exit_code == 2


BLOCKS = {f"model.layers.{name}.weight": [8, 4] for name in ("0.attn.wqkv", "1.mlp.up")}
BLOCKS |= {"model.layers.1.norm.weight": [4], "model.embed.weight": [9, 4], "lm_head.weight": [9, 4]}
EXPERTS = {f"model.layers.0.mlp.experts.{i}.gate_proj.weight": [8, 4] for i in range(2)}
TRANSPOSED = {"attn.c_attn": [4, 12], "attn.c_proj": [4, 4], "mlp.c_fc": [4, 16], "mlp.c_proj": [16, 4]}


@pytest.mark.parametrize(
    ("shapes", "targets", "says"),
    [
        *(
            (BLOCKS, ("up", name), rf"got {name}\. Next: choose from up, wqkv, or all-linear")
            for name in ("norm", "lm_head")
        ),
        (
            EXPERTS | {"model.layers.0.self_attn.q_proj.weight": [4, 4]},
            ("gate_proj",),
            r"got gate_proj\. Next: choose from q_proj, or all-linear",
        ),
        (
            {f"h.0.{name}.weight": shape for name, shape in TRANSPOSED.items()}
            | {f"h.0.{name}.bias": shape[1:] for name, shape in TRANSPOSED.items()},
            "all-linear",
            r"needs linear layers .*Next: train all weights with model\.lora=null",
        ),
    ],
)
def test_check_lora_targets_refuses_other_than_linear_layers(
    shapes: dict[str, list[int]], targets: Any, says: str, tmp_path: Path
) -> None:
    path = write_weights(tmp_path / "model", shapes)
    with pytest.raises(ConfigError, match=says):
        check_lora_targets(ModelConfig(path=path, lora=LoraConfig(target_modules=targets)))


def test_check_lora_targets_refuses_experts_of_dense_model() -> None:
    lora = LoraConfig(target_parameters=("experts.down_proj",))
    with pytest.raises(
        ConfigError, match=r"needs a mixture .* got experts\.down_proj with Qwen/Qwen3-8B, a Qwen3For"
    ) as e:
        check_lora_targets(ModelConfig(path="Qwen/Qwen3-8B", lora=lora))
    assert e.value.exit_code == 2


MIXTURE = "Qwen/Qwen3-30B-A3B"


@pytest.mark.parametrize("target", ["foo", "q_proj.weight", "EXPERTS.down_proj", ".*", "experts.up_proj", ".down_proj"])
@pytest.mark.parametrize("place", [{"path": MIXTURE}, {"from_config": MIXTURE}], ids=["path", "from_config"])
def test_check_lora_targets_refuses_names_that_are_no_joined_experts(target: str, place: dict[str, Any]) -> None:
    lora = LoraConfig(target_parameters=("experts.down_proj", target))
    says = rf"joined experts .*; got {re.escape(target)} with .*Next: choose from experts\.gate_up_proj, experts\.down"
    with pytest.raises(ConfigError, match=says) as caught:
        check_lora_targets(ModelConfig(**place, lora=lora))
    assert caught.value.exit_code == 2
    check_lora_targets(ModelConfig(**place, lora=lora, trust_remote_code=True))


@pytest.mark.parametrize("target", ["experts.gate_up_proj", "down_proj", "layers.3.mlp.experts.down_proj"])
def test_check_lora_targets_accepts_ends_of_joined_experts_names(target: str) -> None:
    check_lora_targets(ModelConfig(path=MIXTURE, lora=LoraConfig(target_parameters=(target,))))


def test_check_lora_targets_accepts_matrices_of_blocks_and_remote_models(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "model", BLOCKS)
    assert read_linear_names(Path(path)) == {"wqkv", "up"}
    for place, targets in ((path, ("wqkv", "up")), (str(tmp_path / "hub-name"), ("anything",))):
        check_lora_targets(ModelConfig(path=place, lora=LoraConfig(target_modules=targets)))


ONE = {"id2label": {"0": "LABEL_0"}}
CHATS = "{{ messages }}"


def write_reward_model(folder: Path, tree: dict[str, Any], template: str | None = None) -> str:
    (folder / "config.json").write_text(json.dumps(tree))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return str(folder)


@pytest.mark.parametrize(
    ("tree", "template", "chats", "fields", "says"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, None, None, {}, "one output; got 2 in"),
        ({"architectures": ["Qwen3ForCausalLM"]}, None, None, {}, "one output; got 2 in"),
        (ONE, None, None, {"normalize": True}, "needs mean and std > 0 .*mean=None, std=None"),
        (ONE | {"mean": 0.5, "std": 0.0}, None, None, {"normalize": True}, "std=0.0"),
        (ONE, None, True, {}, "without a template"),
        (ONE | {"scores_chats": False}, CHATS, True, {}, "trained on text"),
        (ONE | {"scores_chats": False}, CHATS, False, {}, None),
        (ONE | {"mean": 0.5, "std": 2.0, "scores_chats": True}, CHATS, True, {"normalize": True}, None),
    ],
)
def test_check_reward_model_refuses_unscorable_model(
    tree: dict[str, Any],
    template: str | None,
    chats: bool | None,
    fields: dict[str, Any],
    says: str | None,
    tmp_path: Path,
) -> None:
    model = RewardModelConfig(path=write_reward_model(tmp_path, tree, template), **fields)
    with pytest.raises(ConfigError, match=says) if says else contextlib.nullcontext():
        check_reward_model(model, chats)
    check_reward_model(RewardModelConfig(path="org/name", normalize=True), True)
    with pytest.raises(ConfigError, match="got Qwen/Qwen3-8B, which generates text"):
        check_reward_model(RewardModelConfig(path="Qwen/Qwen3-8B"), None)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = json.dumps({"metadata": {}, "weight_map": dict(zip("abcdef", SHARDS * 2, strict=True))})


def fill(folder: Path, *names: str, **files: str) -> Path:
    for name in names:
        write_header(folder / name, {"a.weight": [2, 2]})
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("names", "files", "says"),
    [
        (SHARDS[:1], {"model__safetensors__index__json": INDEX}, r"lacks 2 of the 3 files.*00002-of-00003.*00003"),
        ([], {"pytorch_model__bin": "x"}, r"must have its weights as safetensors.*pytorch_model\.bin.*save_pretrained"),
        ([], {"model__safetensors": POINTER}, r"has git-lfs pointers.*model\.safetensors.*git lfs pull"),
        (["model.safetensors"], {"tokenizer__json": POINTER}, r"has git-lfs pointers.*tokenizer\.json"),
    ],
)
def test_check_weight_files_refuses_with_reason(
    tmp_path: Path, names: list[str], files: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"^model.path {says}"):
        check_weight_files("model.path", fill(tmp_path, *names, **files))


@pytest.mark.parametrize(
    ("names", "files"),
    [
        ([], {}),
        (SHARDS, {"model__safetensors__index__json": INDEX}),
        (["model.safetensors"], {"pytorch_model__bin": "x", "training_args__bin": "x", "tokenizer__json": "{}"}),
    ],
)
def test_check_weight_files_accepts_complete_folder(tmp_path: Path, names: list[str], files: dict[str, str]) -> None:
    check_weight_files("model.path", fill(tmp_path, *names, **files))


def test_read_shapes_explains_incomplete_file(tmp_path: Path) -> None:
    for content in (POINTER.encode(), b"\xff" * 64, b"", b"\x02\0\0\0\0\0\0\0[]"):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match=r"must be complete; got .*: (not a safetensors file|Expecting value)"):
            read_shapes(tmp_path)
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    assert read_shapes(tmp_path) == {"a": [4]}
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ConfigError, match=f"truncated: it has {8 + len(header) + 13} of {8 + len(header) + 16} bytes"):
        read_shapes(tmp_path)


VISION = ["model=tiny_qwen2_5_vl", "warmup.num_steps=0"]


def submit(tmp_path: Path, image: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error of a run with this image in its second row."""
    write_image(tmp_path / "good.png", 0, 20, 20)
    names = ("good.png", image, "good.png")
    rows = [{"prompt": f"{i}?", "answer": "1", "images": [name]} for i, name in enumerate(names)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_dir = tmp_path / "run"
    common = ["+exp=demo", f"run_dir={run_dir}", f"data.train={data}", "data.num_eval=1", "data.chat_template=true"]
    assert main(["submit", *common, *words]) == 2
    assert not run_dir.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "said"), [("gone.png", "gone.png"), ("text.png", "hello"), ("https://example.org/1.png", "example.org")]
)
def test_submit_names_row_of_unreadable_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], image: str, said: str
) -> None:
    (tmp_path / "text.png").write_text("hello")
    error = submit(tmp_path, image, capsys, "data.image_key=images", *VISION)
    assert "rows.jsonl:2" in error and said in error


@pytest.mark.parametrize("words", [[], ["model=hf", "model.path={folder}"]])
def test_images_for_text_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    words = [word.format(folder=tmp_path) for word in words]
    error = submit(tmp_path, "good.png", capsys, "data.image_key=images", *words)
    assert "vision-language model" in error and "data.image_key" in error


def test_reversed_bounds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = submit(tmp_path, "good.png", capsys, *VISION, "model.min_pixels=5000", "model.max_pixels=4000")
    assert "model.min_pixels must be <= model.max_pixels; got 5000 > 4000" in error


def rows(*answers: str) -> list[PromptRow]:
    return [PromptRow(index=i, where="my.jsonl", prompt="p", answer=answer) for i, answer in enumerate(answers)]


@pytest.mark.parametrize(
    ("verifier", "good", "bad", "words"),
    [
        ("math", r"50\%", "The answer is 42", "needs a reference answer that is LaTeX"),
        ("arithmetic", "7", "07", "needs a decimal integer"),
        ("code", '{"stdio": [{"stdin": "", "stdout": "1"}]}', "42", "needs tests as reference answer"),
    ],
)
def test_check_references_names_unscorable_rows(verifier: str, good: str, bad: str, words: str) -> None:
    config = RewardConfig(verifiers={verifier: 1.0, "format": 0.2})
    warnings: list[str] = []
    check_references(config, rows(good, bad, good), warnings.append)
    [line] = warnings
    assert f"cannot for 1 of 3: {rows(good, bad)[1].name}: {bad!r}" in line and words in line
    with pytest.raises(DataError, match=rf"the {verifier} verifier must be able to score .*2 of 2"):
        check_references(config, rows(bad, bad), warnings.append)


def test_check_inputs_of_own_data_names_bad_references(tmp_path: Path) -> None:
    data = tmp_path / "my.jsonl"
    answers = [str(i + 1) for i in range(9)]
    answers[4] = "05"
    data.write_text("\n".join(json.dumps({"prompt": f"{i}+1=", "answer": answer}) for i, answer in enumerate(answers)))
    told: list[str] = []
    check_inputs(load_config(["+exp=demo", f"data.train={data}", "data.num_eval=1"]), told.append)
    assert any("my.jsonl:5: '05'" in line and "reward/failed_reference" in line for line in told)


def test_check_references_without_verifiers_checks_nothing() -> None:
    told: list[str] = []
    config = RewardConfig(verifiers={"math": 1.0}, url="http://host:5000/get_reward")
    check_references(config, rows("#### 72"), told.append)
    assert told == []


LACK = "the job's Python lacks ray, transformers, vllm"


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """Return a Python that has only torch."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\nshift 2\nfor name in "$@"; do [ $name = torch ] || echo $name; done\n')
    path.chmod(0o755)
    return path


def plan_of(*words: str, task: Sequence[str] = ("+exp=demo",)) -> JobPlan:
    return make_plan(*task, "+cluster=slurm_cpu", *words, python=sys.executable)


JUDGED = ["reward.judge.model=j", "reward.judge.url=http://a/v1", "reward.judge.prompt='{completion}'"]


@pytest.mark.parametrize(
    ("task", "lacks"),
    [
        (["+exp=demo"], "ray, transformers, vllm"),
        (["+exp=demo", *JUDGED], "ray, transformers, vllm, openai"),
        (["+exp=sft_tiny"], "transformers"),
        (["+exp=command", "external.argv=[train]"], "ray"),
    ],
)
def test_check_interpreter_refuses_missing_requirement(light: Path, task: list[str], lacks: str) -> None:
    with pytest.raises(ConfigError, match=rf"lacks {lacks}; got {light}.*slurm_rl\[cpu\]"):
        check_interpreter(plan_of(f"cluster.python={light}", task=task), print)
    told: list[str] = []  # the setup may provide it
    check_interpreter(plan_of(f"cluster.python={light}", "cluster.setup=[module load ray]", task=task), told.append)
    assert f"the job's Python lacks {lacks}" in told[0] and "cluster.setup" in told[0]


@pytest.mark.parametrize(
    "words",
    [
        ["cluster.python=/nowhere/bin/python"],
        ["cluster.python=python3"],
        ["container.runtime=apptainer", "container.image=/i.sif", "cluster.python=/bin/false"],
    ],
)
def test_check_interpreter_skips_unrunnable_python(words: list[str]) -> None:
    told: list[str] = []
    check_interpreter(plan_of(*words), told.append)
    assert told == []


def test_plan_warns_and_submit_refuses(
    light: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(light.parent)
    words = ["+exp=demo", f"cluster.python={light}", "run_dir=x"]
    assert main(["plan", *words]) == 0
    assert f"warning: submit will refuse this: {LACK}" in capsys.readouterr().err
    assert main(["submit", *words]) == 2
    assert LACK in capsys.readouterr().err and not (light.parent / "x").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("source /shared/venv/bin/activate", "set cluster.python=/shared/venv/bin/python"),
        ("conda activate rl", "set cluster.python to the Python of that environment"),
        (f"source {sys.prefix}/bin/activate", None),
        ("module load cuda", None),
    ],
)
def test_find_activated_names_key_of_another_environment(line: str, says: str | None) -> None:
    assert find_activated((line,)) == says


def test_check_interpreter_warns_that_setup_keeps_python() -> None:
    told: list[str] = []
    setup = "cluster.setup=['source /shared/venv/bin/activate']"
    check_interpreter(plan_of(setup), told.append)
    assert "the run uses" in told[0] and "cluster.python=/shared/venv/bin/python" in told[0]
    told.clear()
    check_interpreter(plan_of(setup, "cluster.python=/shared/venv/bin/python"), told.append)
    assert told == []
