"""What a policy reads between its replies: the tokens behind a reply, made of an observation. Nothing before them is
tokenised again, so that what is trained on is what was sampled.

    "5<|im_end|>", then "higher"   ->   "\\n<|im_start|>user\\nhigher<|im_end|>\\n<|im_start|>assistant\\n"

With a chat template that is what it renders behind a reply of its own: an end of turn, the observation as messages,
what makes the model answer. That this follows from the observation alone is proven when a renderer is made. A template
that would rewrite earlier turns (Qwen3's cuts old thinking) is never asked to: they stay as they were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_rl.data.chat import ChatTemplate, as_messages
from slurm_rl.data.prompts import Text
from slurm_rl.errors import ConfigError, DataError

_REPLIES = ("Zwischenruf", "Querkopf, 17.")
"""Two replies that nothing else of a conversation is likely to hold."""
_OBSERVATION = "Gegenbeispiel 23"


class TurnRenderer:
    """Observations to tokens.

    Raises:
        ConfigError: the chat template says something else behind another reply, or hides the observation.
    """

    def __init__(self, tokenizer: Any, template: ChatTemplate | None) -> None:
        self.tokenizer, self.template = tokenizer, template
        if template is not None:
            self._prove()

    def render(self, observation: Text, last_token: int | None = None) -> list[int]:
        """Token ids that follow a reply.

        Args:
            last_token: of the reply; where it ended its turn as the template does, that end is not said twice.

        Raises:
            DataError: messages without a chat template, or messages that it refuses.
        """
        if self.template is None:
            if not isinstance(observation, str):
                raise DataError(
                    "an observation of messages needs the chat template",
                    seen="data.chat_template=false",
                    action="return text from step, or set data.chat_template=true",
                )
            return self._encode(observation)
        token_ids = self._encode(self._behind(_REPLIES[0], observation))
        return token_ids[1:] if token_ids[:1] == [last_token] else token_ids

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _behind(self, reply: str, observation: Text) -> str:
        """What the template says behind a reply, as text."""
        assert self.template is not None
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": reply}]
        text = self.template.render([*said, *as_messages(observation)], "an observation", add_generation_prompt=True)
        return text.rpartition(reply)[2]

    def _prove(self) -> None:
        behind = [self._behind(reply, _OBSERVATION) for reply in _REPLIES]
        whole = f"{_REPLIES[0]}{behind[0]}"
        found = {
            "another text behind another reply": behind[0] != behind[1],
            "no observation behind the reply": behind[0].count(_OBSERVATION) != 1,
            "tokens across the end of the reply": self._joins(_REPLIES[0], behind[0], whole),
        }
        if wrong := [what for what, is_so in found.items() if is_so]:
            raise ConfigError(
                "env.name needs a chat template that says the same behind every reply",
                seen=f"{', '.join(wrong)}: {behind[0]!r}",
                action="choose another model, or give the tokenizer a template that only appends",
            )

    def _joins(self, reply: str, behind: str, whole: str) -> bool:
        parts: Sequence[int] = [*self._encode(reply), *self._encode(behind)]
        return list(parts) != self._encode(whole)
