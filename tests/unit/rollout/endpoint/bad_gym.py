"""Environments with Gymnasium's methods that misbehave as the action requests; Gymnasium is not needed."""

import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any


class World:
    def __init__(self, fails: str = "", numbered: bool = False) -> None:
        if numbered:
            self.action_space = SimpleNamespace(n=3)
        if fails == "make":
            raise KeyError("no such world")
        self.fails = fails

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        if self.fails == "reset":
            raise ValueError(f"no seed {seed >= 0}")
        return ":", {}

    def step(self, action: str) -> Any:
        observation, reward, done = "", 1.0, True
        match action:
            case "go":
                observation, reward, done = "go:", 0.25, False
            case "raise":
                raise KeyError("no such door")
            case "exit":
                sys.exit("enough")
            case "deep":
                return self.step(action)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "print":
                print('{"episode": "?", "reward": 7}')
            case "nan":
                reward = float("nan")
            case "much":
                reward = "much"  # type: ignore[assignment]
            case "none":
                reward = None  # type: ignore[assignment]
            case "short":
                return observation, reward, done
            case "half":
                observation, done = "\ud800", False
            case "long":
                observation, done = "x" * 5000, False
        return observation, reward, done, False, {}

    def close(self) -> None:
        if self.fails == "close":
            raise OSError("cannot be closed")
