import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.cli.reward_server import configure, run
from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import ConfigError
from tests.unit.rewards.service_kit import ODD_FUNCTION

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.num_steps=3"], "accepts only overrides of reward; got trainer.num_steps=3"),
        (["reward.url=http://a/b"], "cannot use another reward service"),
        (["reward.function=/none.py:f"], r"must name a file that can be read; got /none.py \(No such file"),
        (["reward.function=f.py"], "reward.function must be file.py:name"),
        (["reward.num_workers=2"], r"needs a reward.*\+reward=math"),
    ],
)
def test_invalid_arguments_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(words, None)
    assert configure(["+reward=math_format"], None).verifiers == {"math": 1.0, "format": 0.5}


def test_missing_token_or_infinite_score_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a finite number; got nan"):
        run(["--failure-reward", "nan"])
    monkeypatch.delenv("SLURM_RL_REWARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="needs a token"):
        run(["--port", "0", "+reward=math"])
    loose = tmp_path / "token"
    loose.write_text("abc")
    loose.chmod(0o640)
    with pytest.raises(ConfigError, match="the token file must be readable only by its owner"):
        run(["--port", "0", "--token-file", str(loose), "+reward=math"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "http://a/b", "function": "f.py:g"}, "only one of these .* got reward.function and reward.url"),
        ({"url": "http://a/b", "service": {"enabled": True}}, "reward.service.enabled would have no effect"),
        ({"url": "a/b"}, "reward.url must be http://host:port/path"),
        ({"url": "http://a/b,"}, "got ''"),
    ],
)
def test_contradicting_settings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RewardConfig.model_validate(fields)


def test_server_serves_unlabelled_requests_and_ends_on_sigterm(tmp_path: Path) -> None:
    import requests  # OpenRLHF's clients use requests

    answers = tmp_path / "rows.jsonl"
    answers.write_text('{"message": "[{\\"role\\": \\"user\\", \\"content\\": \\"3+4?\\"}]", "answer": "8"}\n')
    words = ["--port", "0", "--answers", str(answers), "--prompt-key", "message", f"reward.function={ODD_FUNCTION}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SLURM_RL_REWARD_TOKEN": "secret-token"}
    argv = [sys.executable, "-m", "slurm_rl.rewards.server", *words]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"at http://(\S+), 1 workers", line := server.stdout.readline())
            assert found, line
            query = "<|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\nseven<|im_end|>"
            prompt = '[{"role": "user", "content": "3+4?"}]'
            url = f"http://any:secret-token@{found[1]}"
            answer = requests.post(url, json={"query": [query], "prompts": [prompt]}, timeout=120)
            assert (answer.status_code, answer.json()["rewards"], answer.json()["length"]) == (200, [1.0], [5.0])
            unknown = requests.post(url, json={"query": [query], "prompts": ["test problem"]}, timeout=120)
            assert unknown.status_code == 422
            assert "prompts[0] must be one of the prompts of --answers" in unknown.json()["error"]
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
