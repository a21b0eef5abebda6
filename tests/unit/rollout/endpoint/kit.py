"""An endpoint with a scripted engine and one token per letter."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.data.groups import Trajectory
from slurm_rl.rollout.endpoint.conversation import DialogueRenderer
from slurm_rl.rollout.endpoint.episode import Ask, Bounds
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.endpoint.server import Endpoint

RULE = SamplingRule(temperature=1.0, top_p=1.0, turn_tokens=8)
BOUNDS = Bounds(max_turns=8, max_tokens=200)


class Letters:
    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def get_vocab(self) -> dict[str, int]:
        return {"a": 97}

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return "".join(map(chr, token_ids))


class Template:
    """`<user>text</user><assistant>`, and `</assistant>` after a reply."""

    tools: tuple[()] = ()

    def render(self, messages: list[dict[str, Any]], name: str, *, add_generation_prompt: bool) -> str:
        said = "".join(f"<{message['role']}>{message['content']}</{message['role']}>" for message in messages)
        return said + "<assistant>" * add_generation_prompt


def make_renderer(*, chat: bool = True) -> DialogueRenderer:
    template: Any = Template() if chat else None
    return DialogueRenderer(Letters(), template)


def sampled(text: str, version: int = 3) -> Trajectory:
    return Trajectory([ord(letter) for letter in text], [-0.5] * len(text), text, False, version)


@dataclass
class Engine:
    """Answer in the caller's thread, after `gate` opens."""

    say: Callable[[str], str] = lambda context: "ok"
    asked: list[Ask] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def ask(self, ask: Ask) -> None:
        self.asked.append(ask)
        threading.Thread(target=self._answer, args=(ask,), daemon=True).start()

    def _answer(self, ask: Ask) -> None:
        self.gate.wait(60)
        ask.done.set_result(sampled(self.say("".join(map(chr, ask.context)))))

    @property
    def contexts(self) -> list[str]:
        return ["".join(map(chr, ask.context)) for ask in self.asked]


@contextmanager
def serving(
    engine: Any, rule: SamplingRule = RULE, bounds: Bounds = BOUNDS, renderer: DialogueRenderer | None = None
) -> Iterator[Endpoint]:
    with Endpoint(renderer or make_renderer(), rule, bounds, engine.ask) as endpoint:
        yield endpoint
