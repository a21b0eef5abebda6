"""JSON schemas of tools, derived from signatures and docstrings by transformers.

This runs once in a separate process: the trainer never imports the user's file.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.tools import bind_tools, load_tools
from slurm_rl.errors import ConfigError, RewardError

Schema = dict[str, Any]
"""`{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}`, as OpenAI's."""


def read_schemas(config: EnvironmentConfig) -> list[Schema]:
    """Return the schema of each tool of env.tools, in order; [] without tools.

    Raises:
        ConfigError: the file fails, or a function lacks a docstring or types.
        RewardError: no answer within `env.start_timeout_s`.
    """
    if config.tools is None:
        return []
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_tell, args=(theirs, config.tools), daemon=True, name="schemas")
    process.start()
    theirs.close()
    try:
        told: Any = ours.recv() if ours.poll(config.start_timeout_s) else None
    except (EOFError, OSError):
        process.join(1.0)
        told = f"its process died with exit code {process.exitcode}"
    finally:
        ours.close()
        process.kill()
        process.join()
    if told is None:
        raise RewardError(
            f"tool schemas must be available within {config.start_timeout_s:g} s (env.start_timeout_s)",
            seen=f"nothing of {config.tools}",
            action="check what the file does when it is imported, or raise the timeout",
        )
    if isinstance(told, str):
        raise ConfigError(
            "functions in env.tools need type hints and a docstring that describes each argument",
            seen=f"{config.tools}: {told}",
            action="fix the docstring; see the example in docs/agents.md",
        )
    return list(told)


def _tell(connection: Connection, spec: str) -> None:
    try:
        _, tools = bind_tools(load_tools(spec))
        connection.send([build_schema(name, tool) for name, tool in tools.items()])
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {error}")


def build_schema(name: str, tool: Callable[..., Any]) -> Schema:
    """Return the schema of one function; transformers raises any error."""
    from transformers.utils import get_json_schema

    schema: Schema = get_json_schema(tool)
    schema["function"]["name"] = name
    # No API of a model has it, and no model was taught it.
    schema["function"].pop("return", None)
    return schema
