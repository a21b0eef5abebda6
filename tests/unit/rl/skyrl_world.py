"""A user-defined environment of skyrl-gym that rewrites the policy's reply."""

from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class Polite(BaseTextEnv):
    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        super().__init__()
        self.greeting, self.who = env_config.greeting, extras["who"]

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [{"role": "user", "content": f"{prompt[0]['content']} {self.greeting} {self.who}"}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        if self.turns == 1:
            said = [{"role": "user", "content": "and?"}]
            return BaseTextEnvStepOutput(
                observations=said, reward=float(action == "you"), done=False, metadata={}, postprocessed_action="me"
            )
        return BaseTextEnvStepOutput(observations=[], reward=float(action == "nd?"), done=True, metadata={})
