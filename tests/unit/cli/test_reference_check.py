import json
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardConfig
from slurm_rl.data.prompts import PromptRow
from slurm_rl.errors import DataError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.rewards.check_references import check_references


def rows(*answers: str) -> list[PromptRow]:
    return [PromptRow(index=i, where="my.jsonl", prompt="p", answer=answer) for i, answer in enumerate(answers)]


@pytest.mark.parametrize(
    ("verifier", "good", "bad", "words"),
    [
        ("math", r"50\%", "The answer is 42", "needs a reference answer that is LaTeX"),
        ("math", "0.5", "", "needs a reference answer that is LaTeX"),
        ("arithmetic", "7", "07", "needs a decimal integer"),
        ("code", '{"stdio": [{"stdin": "", "stdout": "1"}]}', "42", "needs tests as reference answer"),
    ],
)
def test_check_references_names_unscorable_rows(verifier: str, good: str, bad: str, words: str) -> None:
    config = RewardConfig(verifiers={verifier: 1.0, "format": 0.2})
    warnings: list[str] = []
    check_references(config, rows(good, good), warnings.append)
    assert warnings == []
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
