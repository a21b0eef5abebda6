"""Adapters with the real packages: gymnasium from this environment, others from a separate one."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rollout.endpoint.episode import Bounds
from slurm_rl.rollout.endpoint.programs import ADAPTERS, find_argv
from slurm_rl.rollout.engine import GenerationRequest
from slurm_rl.rollout.response import Response
from tests.adapters_python import adapters_python
from tests.unit.rl.test_agent_rollouts import Engine, play_prompts
from tests.unit.rollout.endpoint.test_tools import Engine as ToolEngine
from tests.unit.rollout.endpoint.test_tools import called, complete

VF_WORLD = f"{Path(__file__).with_name('vf_world.py')}:load_environment"


@pytest.mark.slow
def test_reasoning_gym_makes_rows_and_scores_replies() -> None:
    python = adapters_python()
    rows = [python, str(ADAPTERS / "play_reasoning_gym.py"), "rows", "spell_backward", "3", "--head", "no" * 2]
    made = subprocess.run(rows, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in made.splitlines()]
    assert len(found) == 3 and made == subprocess.run(rows, capture_output=True, text=True, check=True).stdout
    prompts = [
        EncodedPrompt(index=i, token_ids=[63], text=row["prompt"], answer=row["answer"], info={"entry": row["entry"]})
        for i, row in enumerate(found)
    ]
    engine = Engine(say=lambda text: next(row["answer"] for row in found if row["prompt"] in text))
    argv = find_argv([python, "adapter:reasoning_gym"])
    right = play_prompts(prompts, argv, engine, rows=8)
    wrong = play_prompts(prompts, argv, Engine(say=lambda text: "?"), rows=8)
    assert [result.value for group in right for result in group.results] == [1.0] * 6
    assert all((result.value or 0.0) < 0.5 and result.failure is None for group in wrong for result in group.results)


@pytest.mark.slow
def test_skyrl_gym_environment_returns_sum_of_rewards() -> None:
    """skyrl-gym's gsm8k: 1 for the correct answer, 0.2 / 3 for another number in the right format, else 0."""
    argv = find_argv([adapters_python(), "adapter:skyrl_gym", "gsm8k_multi_turn", "--max-turns", "3"])
    engine = Engine(say=lambda text: f"#### {7 if 'only' in text else 5}" if "tentative" in text else "hm")
    info = [{"reward_spec": {"ground_truth": truth}, "extra_info": {}} for truth in ("7", "5", "9")]
    prompts = [EncodedPrompt(index=i, token_ids=[63], text="?", answer="", info=one) for i, one in enumerate(info)]
    third, second, never = play_prompts(prompts, argv, engine, rows=8, bounds=Bounds(8, 4000))
    for group, value, steps in ((third, 1.0 + 0.2 / 3, 3), (second, 1.0, 2), (never, 0.4 / 3, 3)):
        assert [result.value for result in group.results] == pytest.approx([value] * 2), group.results
        assert all(result.parts == {"steps": steps} for result in group.results)
    # An episode that the run cuts after a reply keeps its reward so far.
    [cut] = play_prompts(prompts[1:2], argv, engine, rows=8, bounds=Bounds(1, 4000))
    assert [result.value for result in cut.results] == [0.0] * 2 and all(one.truncated for one in cut.completions)


@pytest.mark.slow
def test_skyrl_gym_class_may_rewrite_replies_and_errors_are_reported() -> None:
    world = f"{Path(__file__).with_name('skyrl_world.py')}:Polite"
    argv = find_argv([adapters_python(), "adapter:skyrl_gym", world, "--words", '{"greeting": "hello"}'])
    prompts = [EncodedPrompt(index=0, token_ids=[63], text="?", answer="", info={"who": "you"})]
    engine = Engine(say=lambda text: text[-3:])
    [group] = play_prompts(prompts, argv, engine, rows=8, bounds=Bounds(8, 4000))
    assert [result.value for result in group.results] == [2.0] * 2, group.results
    # The rewritten reply differs from the sampled one, so the next turn starts a new sequence.
    assert all(completion.num_sequences == 2 for completion in group.completions)
    [failed] = play_prompts([replace(prompts[0], info={})], argv, engine, rows=8)
    assert all(result.failure == "exception" and "KeyError" in result.detail for result in failed.results)


def test_gymnasium_environment_is_played() -> None:
    pytest.importorskip("gymnasium", reason="it comes with the extra dev")
    argv = find_argv([sys.executable, "adapter:gymnasium", "FrozenLake-v1", "--words", '{"is_slippery": false}'])
    prompts = [EncodedPrompt(index=0, token_ids=[63], text="?", answer="")]
    # Down, down, right, right, down, right: from field 0 to 15 of the 4x4 map, around the holes.
    steps = {"?0": "1", "?014": "1", "?01418": "2", "?0141829": "2", "?0141829210": "1", "?0141829210114": "2"}
    [group] = play_prompts(prompts, argv, Engine(say=lambda text: steps[text]), rows=8)
    assert [(result.value, result.parts) for result in group.results] == [(1.0, {"steps": 6.0})] * 2


class Calling(Engine):
    """Request the sum from the tool, then answer with it; the parser of test_tools.py reads the replies."""

    def __init__(self, tools: ToolEngine) -> None:
        super().__init__()
        self.tools = tools

    def on_submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            text = self.tools.tokenizer.decode(request.prompt.token_ids)
            first, second = re.findall(r"(\d+) \+ (\d+)\?", text)[-1]
            told = re.findall(r"<tool_response>\n(\d+)", text)
            said = told[-1] if told else called(first).replace("}}", f', "b": {second}}}}}')
            reply = complete(self.tools.tokenizer, said, reads=request.tools is not None)
            self._ended.put((request.name, Response.pack(reply)))


@pytest.mark.slow
def test_verifiers_environment_is_played_with_tools_and_rubric() -> None:
    python = adapters_python()
    adapter = str(ADAPTERS / "play_verifiers.py")
    made = subprocess.run([python, adapter, "rows", VF_WORLD, "3"], capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in made.splitlines()]
    assert [row["answer"] for row in rows] == ["4", "5", "6"] and rows[0]["prompt"][-1]["content"] == "0 + 4?"
    prompts = [
        EncodedPrompt(index=i, token_ids=[1], text="", messages=row["prompt"], answer="", info={"input": row["input"]})
        for i, row in enumerate(rows)
    ]
    tools = ToolEngine([])
    argv = find_argv([python, "adapter:verifiers", VF_WORLD])
    groups = play_prompts(
        prompts, argv, Calling(tools), rows=8, renderer=tools.renderer, bounds=Bounds(4, 4000), turn_tokens=64
    )
    for group in groups:
        for result, completion in zip(group.results, group.completions, strict=True):
            assert result.value == 1.0 and result.parts["right"] == 1.0, result.detail
            assert [len(turn.calls) for turn in completion.turns] == [1, 0] and completion.num_sequences == 1
    refused = play_prompts(prompts[:1], [*argv, "--words", '{"group": true}'], Calling(tools), rows=8)
    assert all("scores groups of rollouts" in result.detail for result in refused[0].results)
